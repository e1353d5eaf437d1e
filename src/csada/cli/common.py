"""What all commands share: the app, the consoles, the progress bar. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer import Argument, Option

from csada.errors import InputError, RunError, check_known, explained
from csada.files import printable, whole, write_text

if TYPE_CHECKING:
    import torch

    from csada.classifier import Classifier
    from csada.data import Splits
    from csada.evidence import Evidence
    from csada.metrics import Evaluation
    from csada.workflow.engine import Engine

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Classifiers for when some mistakes cost more than others.",
)
console = Console(markup=False, highlight=False)
errors = Console(stderr=True, markup=False, highlight=False)


def bound_cache(gigabytes: float | None) -> float | None:
    """For this command; CSADA_CACHE_GB does the same for all."""
    if gigabytes is not None:
        os.environ["CSADA_CACHE_GB"] = str(gigabytes)
    return gigabytes


def no_address(folder: Path) -> Path:
    """s3://bucket would be a folder named s3: here."""
    if folder.parts[:1] and folder.parts[0].endswith(":"):
        raise InputError(
            f"{folder} is an address; give a folder, with several nodes one that all of them share, or add --store"
        )
    return folder


OutDir = Annotated[Path, Option("--out", callback=no_address, help="The folder to write to.")]
RUNS = "Folder of runs; an interrupted one resumes there."
RunsDir = Annotated[Path, Option("--runs", callback=no_address, help=RUNS)]
DataSet = Annotated[str, Argument(help="A data set's name, a folder or tar files of images, or a CSV or Parquet file.")]
DataDir = Annotated[Path | None, Option(help="The folder of the data set's files.")]
Scale = Annotated[float, Option(help="The fraction of the data to use.")]
SkipBad = Annotated[bool, Option(help="Leave out images that cannot be decoded, and list them.")]
COSTS = "A CSV file of costs; or uniform, pareto:SEED, pmi."
CacheGb = Annotated[
    float | None,
    Option(callback=bound_cache, help="Gigabytes that the cache of decoded images may take."),
]
Costs = Annotated[str, Option(help=COSTS)]
Label = Annotated[
    str | None, Option(metavar="NAME", help="A table's column with the classes; by default the last one.")
]
Ignore = Annotated[list[str] | None, Option(metavar="NAME[,NAME]", help="Columns of a table to leave out.")]
Size = Annotated[int | None, Option(min=8, help="Pixels to which the sides of images are resized.")]
Flip = Annotated[bool, Option(help="Mirror training images; only if left and right mean the same.")]
Device = Annotated[str, Option(metavar="auto|cpu|cuda", help="Where to compute; auto: a GPU if there is one.")]
Model = Annotated[Path, Argument(help="A folder written by `csada train` or `csada fit`.")]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON instead of a table.")]
Track = Annotated[str | None, Option(help="Also log to csv:FOLDER, tensorboard:FOLDER or mlflow:URI.")]
Seen = Annotated[str, Option(metavar="refuse|drop|keep", help="What to do with test samples it was trained on.")]
Force = Annotated[bool, Option("--force", help="Overwrite a file even if csada did not write it.")]
Trust = Annotated[bool, Option(help="Run the code that is named as package.module:factory.")]
WORKERS = "Runs at once, at most; by default one, with Ray all that fit. Several processes share the GPUs."
STORE = "Where nodes of a Ray cluster exchange the files of runs, if they share no folder."


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def progress(text: str) -> Iterator[Callable[..., None]]:
    """A bar fed by `update(done, total)`, and one for each of several runs under way; none if the output is no terminal."""
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        whole, shown = bar.add_task(text, total=None), dict[str, TaskID]()

        def update(done: int, total: int, rows: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> None:
            bar.update(whole, completed=done, total=total)
            rows = rows if len(rows) > 1 else {}
            for ended in shown.keys() - rows.keys():
                bar.remove_task(shown.pop(ended))
            for run, (epoch, epochs) in rows.items():
                if run not in shown:
                    shown[run] = bar.add_task(printable(run), total=epochs)
                bar.update(shown[run], completed=epoch)

        yield update


def say(*lines: str, style: str | None = None, on: Console = console) -> None:
    """Text as it is: a class name is never markup, nor does it steer the terminal."""
    for line in lines:
        on.print("\n" * line.startswith("\n") + printable(line.removeprefix("\n")), style=style, soft_wrap=True)


def warn(*lines: str, style: str | None = "yellow") -> None:
    say(*lines, style=style, on=errors)


def note(*lines: str) -> None:
    warn(*lines, style=None)


def show_json(value: Any) -> None:
    from csada.reading import plain

    typer.echo(json.dumps(plain(value), indent=1))


def show_files(files: list[Path]) -> None:
    say(*(f"wrote {file}" for file in files))


def write(path: Path, text: str, flag: str = "--out") -> Path:
    """A file that people open. Names of folders in it need not be text."""
    with explained(f"cannot write {path}", f"choose another place with {flag}"):
        return write_text(path, text, errors="replace")


@contextmanager
def output(path: Path | None) -> Iterator[IO[str]]:
    """The standard output, or a file that gets its name when all is written. Names that are no UTF-8 pass unchanged."""
    try:
        with (
            whole(path) if path else nullcontext(sys.stdout.fileno()) as target,
            open(
                target, "w", newline="", encoding="utf-8", errors="surrogateescape", closefd=path is not None
            ) as stream,
        ):
            yield stream
    except BrokenPipeError:
        raise  # the reader has seen enough
    except OSError as error:
        raise RunError(f"{path or 'the output'} cannot be written: {error.strerror}") from None


def show_table(headings: tuple[str, ...], rows: list[tuple[str, ...]], title: str | None = None) -> None:
    """The first column holds names."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), title=None if title is None else printable(title))
    for heading in ("", *headings):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row))
    table.width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.print(table, crop=False)  # a number that is cut is another number


def show_rows(evidence: Evidence) -> None:
    """The rows that were compared: accuracy in %, cost per 100 predictions."""
    rows = []
    for row, e in evidence.test.items():
        v = evidence.validation[row]
        low, high = e.interval("mean_cost")
        numbers = [f"{100 * x:.2f}" for x in (v.accuracy, v.mean_cost, e.accuracy, e.mean_cost)]
        rows.append((f"{row} *" if row == evidence.chosen else row, *numbers, f"{100 * low:.2f} to {100 * high:.2f}"))
    show_table(("accuracy,\nvalidation", "cost,\nvalidation", "accuracy,\ntest", "cost,\ntest", "\n95 %"), rows)


def show_members(evidence: Evidence) -> None:
    """What each member of the average bought, on validation samples that fitted nothing."""
    if len(evidence.admissions) > 1:
        rows: list[tuple[str, ...]] = [
            (
                each.name if each.kept else f"{each.name} (left out)",
                f"{100 * each.mean_cost:.2f}",
                f"{100 * each.accuracy:.2f}",
            )
            for each in evidence.admissions
        ]
        show_table(("cost with it", "accuracy with it"), rows)
        say(
            "On validation: the average of the networks down to each line; one that comes twice counts twice. Of those left "
            "out: the average that is used, with that one as well."
        )


def numbers(e: Evaluation) -> dict[str, Any]:
    """An evaluation as plain values."""
    cost = {"mean_cost": e.mean_cost, "interval": e.interval("mean_cost").named()}
    person = {"coverage": e.coverage, "referred": e.referred, "referral_cost": e.costs.referral_cost}
    apart = (
        None if e.decided is None else {name: getattr(e.decided, name) for name in ("samples", "accuracy", "mean_cost")}
    )
    return {"samples": e.samples, "accuracy": e.accuracy, **cost, **person, "decided": apart}


def evidence_numbers(evidence: Evidence) -> dict[str, Any]:
    """The rows, the one that was chosen, the verdict and, where there were limits, what came of them, as plain values."""
    from csada.evidence import HELD_OUT
    from csada.report.card import verdict

    parts = {"validation": evidence.validation, "test": evidence.test}
    rows = {row: {part: numbers(found[row]) for part, found in parts.items()} for row in evidence.test}
    found = {"rows": rows, "chosen": evidence.chosen, "verdict": verdict(evidence)}
    if evidence.limits is None:
        return found
    names = ("bad", "samples", "rate", "bound", "kept")  # shares are of bad cases
    limits = {
        part: [
            {"name": str(each.limit), "at_most": each.limit.most, "confidence": each.limit.confidence}
            | {name: getattr(each, name) for name in names}
            for each in evidence.judged(evidence.chosen, part)
        ]
        for part in HELD_OUT
    }
    return found | {"limits": limits}


@dataclass(frozen=True)
class Group:
    """Options that several commands share, which `command` gives to them."""

    def changed(self) -> dict[str, Any]:
        """The options that are given."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


@dataclass(frozen=True)
class Reading(Group):
    """How data are read."""

    scale: Scale = 1.0
    size: Size = None
    data_dir: DataDir = None
    skip_bad: SkipBad = False
    cache_gb: CacheGb = None
    label: Label = None
    ignore: Ignore = None

    def changed(self) -> dict[str, Any]:
        return super().changed() | ({"ignore": ",".join(self.ignore)} if self.ignore else {})

    def load(self, data: str, classifier: Classifier | None = None, **own: Any) -> Splits:
        """Images are in the classifier's size, and of a table its columns are chosen by name. own: options to add."""
        from csada.data import load

        with progress("decoding") as update:
            found = given(skip_bad=self.skip_bad, label=self.label, ignore=self.ignore, **{"size": self.size} | own)
            options = found | {"data_dir": self.data_dir, "scale": self.scale, "on_progress": update}
            splits = load(data, **options) if classifier is None else classifier.load_data(data, **options)
        note(*splits.warnings, *(f"left out: {name}" for name in splits.skipped))
        return splits


@dataclass(frozen=True)
class Judging(Reading):
    """Also how a saved model is opened, and what the data may be to it."""

    seen: Seen = "refuse"
    trust: Trust = False
    device: Device = "auto"

    def opened(self, model: Path) -> Classifier:
        from csada.classifier import Classifier

        return Classifier.load(model, device=chosen_device(self.device), trust=self.trust)


@dataclass(frozen=True)
class Engines(Group):
    """Where runs are done."""

    engine: Annotated[str, Option(metavar="local|ray|ray://HOST", help="Where runs are done.")] = "local"
    workers: Annotated[int | None, Option(min=1, help=WORKERS)] = None
    per_run: Annotated[
        str, Option(metavar="cpus=1,gpus=0.5", help="What a run asks a Ray cluster for; memory_gb, too.")
    ] = ""
    store: Annotated[str | None, Option(metavar="s3://BUCKET/FOLDER", help=STORE)] = None

    @contextmanager
    def started(self, root: Path, *names: str) -> Iterator[Engine | None]:
        """None: one run after the other, in this process. names: what of the folder `root` the runs and their driver need."""
        from csada.workflow.cluster import Resources
        from csada.workflow.engine import Engine
        from csada.workflow.store import Store

        if self.per_run and self.engine == "local":
            raise InputError("--per-run is what a run asks a Ray cluster for: add --engine ray, or leave it out")
        kept = None if self.store is None else Store(self.store, root.resolve(), names)
        engine = Engine(self.engine, self.workers, Resources.read(self.per_run), kept)
        with nullcontext() if kept is None else kept.mirrored():
            yield None if self.engine == "local" and self.workers in (None, 1) else engine


AS_IT_IS, HERE = Judging(), Engines()


def command(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """One of csada's, with each field of its arguments that are a Group as an option, in that place."""

    def added(function: Callable[..., None]) -> Callable[..., None]:
        shown, groups = list[inspect.Parameter](), dict[str, Any]()
        for own in inspect.signature(function, eval_str=True).parameters.values():
            if not isinstance(own.default, Group):
                shown.append(own)
                continue
            groups[own.name] = kind = own.annotation
            hints = get_type_hints(kind, include_extras=True)
            shown += [each.replace(annotation=hints[each.name]) for each in inspect.signature(kind).parameters.values()]

        @functools.wraps(function)
        def run(**values: Any) -> None:
            made = {key: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for key, kind in groups.items()}
            function(**made, **values)

        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        app.command(name)(run)
        return function

    return added


def given(**options: Any) -> dict[str, Any]:
    """Those that are; names with commas between are names."""
    found = {name: value for name, value in options.items() if value}
    if "ignore" in found:
        found["ignore"] = [name.strip() for text in found["ignore"] for name in text.split(",")]
    return found


def chosen_device(name: str) -> torch.device:
    import torch

    check_known("device", name, ("auto", "cpu", "cuda"))
    gpu = torch.cuda.is_available()
    if name == "cuda" and not gpu:
        raise InputError("PyTorch finds no GPU for --device cuda; leave it out, or give --device cpu")
    return torch.device("cuda" if gpu and name != "cpu" else "cpu")
