"""What all commands share: the app, the consoles, the progress bar. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer import Argument, Option

from csada.errors import InputError
from csada.files import printable

if TYPE_CHECKING:
    import torch

    from csada.classifier import Classifier
    from csada.data import Splits
    from csada.decisions import Judged
    from csada.evidence import Evidence
    from csada.metrics import Evaluation

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Classifiers for when some mistakes cost more than others.",
)
console = Console(markup=False, highlight=False)
errors = Console(stderr=True, markup=False, highlight=False)

OutDir = Annotated[Path, Option("--out", help="The folder to write to.")]
DataSet = Annotated[str, Argument(help="A data set's name, a folder of images or a CSV file.")]
DataDir = Annotated[Path | None, Option(help="The folder of the data set's files.")]
Scale = Annotated[float, Option(help="The fraction of the data to use.")]
SkipBad = Annotated[bool, Option(help="Leave out images that cannot be decoded, and list them.")]
Costs = Annotated[str, Option(help="A CSV file of costs; or uniform, pareto:SEED, pmi.")]
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
Trust = Annotated[bool, Option(help="Run the code that is named as package.module:factory.")]


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar fed by `update(done, total)`; nothing is drawn when the output is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def say(*lines: str, style: str | None = None, on: Console = console) -> None:
    """Text as it is: a class name is never markup, nor does it steer the terminal."""
    for line in lines:
        on.print(printable(line), style=style, soft_wrap=True)


def warn(*lines: str, style: str | None = "yellow") -> None:
    say(*lines, style=style, on=errors)


def note(*lines: str) -> None:
    warn(*lines, style=None)


def show_json(value: Any) -> None:
    from csada.reading import plain

    typer.echo(json.dumps(plain(value), indent=1))


def show_files(files: list[Path]) -> None:
    say(*(f"wrote {file}" for file in files))


def show_table(headings: tuple[str, ...], rows: list[tuple[str, ...]], title: str | None = None) -> None:
    """The first column holds names."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), title=None if title is None else printable(title))
    for heading in ("", *headings):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row))
    console.print(table)


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
    if evidence.admissions:
        rows: list[tuple[str, ...]] = [
            (each.name, f"{100 * each.mean_cost:.2f}", f"{100 * each.accuracy:.2f}") for each in evidence.admissions
        ]
        show_table(("cost with it", "accuracy with it"), rows)
        say("Networks in the order in which validation added them to the average; one that comes twice counts twice.")


def numbers(e: Evaluation) -> dict[str, Any]:
    """An evaluation as plain values."""
    cost = {"mean_cost": e.mean_cost, "interval": e.interval("mean_cost").named()}
    person = {"coverage": e.coverage, "referred": e.referred, "referral_cost": e.costs.referral_cost}
    apart = (
        None if e.decided is None else {name: getattr(e.decided, name) for name in ("samples", "accuracy", "mean_cost")}
    )
    return {"samples": e.samples, "accuracy": e.accuracy, **cost, **person, "decided": apart}


def judged_numbers(each: Judged) -> dict[str, Any]:
    """A limit on counted cases as plain values; shares are of bad cases."""
    limit, counted = each.limit, {"bad": each.bad, "samples": each.samples}
    return {"name": str(limit), "at_most": limit.most, "confidence": limit.confidence, **counted} | {
        "rate": each.rate,
        "bound": each.bound,
        "kept": each.kept,
    }


def row_numbers(evidence: Evidence) -> dict[str, Any]:
    parts = {"validation": evidence.validation, "test": evidence.test}
    return {row: {part: numbers(rows[row]) for part, rows in parts.items()} for row in evidence.test}


def load_data(
    data: str, data_dir: Path | None, scale: float, classifier: Classifier | None = None, **own: Any
) -> Splits:
    """The data with the source's own options as far as given (size, flip, skip_bad, label, ignore).

    Images are in the classifier's size, and of a table its columns are chosen by name.
    """
    from csada.data import load

    with progress("decoding") as update:
        options = given(**own) | {"data_dir": data_dir, "scale": scale, "on_progress": update}
        splits = load(data, **options) if classifier is None else classifier.load_data(data, **options)
    warn(*splits.warnings, *(f"left out: {name}" for name in splits.skipped), style=None)
    return splits


def given(**options: Any) -> dict[str, Any]:
    """Those that are; names with commas between are names."""
    found = {name: value for name, value in options.items() if value}
    if "ignore" in found:
        found["ignore"] = [name.strip() for text in found["ignore"] for name in text.split(",")]
    return found


def opened(model: Path, device: str, trust: bool) -> Classifier:
    from csada.classifier import Classifier

    return Classifier.load(model, device=chosen_device(device), trust=trust)


def chosen_device(name: str) -> torch.device:
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {name!r}; known: auto, cpu, cuda")
    gpu = torch.cuda.is_available()
    if name == "cuda" and not gpu:
        raise InputError("PyTorch finds no GPU for --device cuda; leave it out, or give --device cpu")
    return torch.device("cuda" if gpu and name != "cpu" else "cpu")
