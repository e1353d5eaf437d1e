"""What all commands share: the app, the consoles, the progress bar. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from csada.errors import InputError

if TYPE_CHECKING:
    import torch

    from csada.data import Splits

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Classifiers for when some mistakes cost more than others.",
)
console = Console()
errors = Console(stderr=True)

OutDir = Annotated[Path, typer.Option("--out", help="Folder for what is written.")]
DataSet = Annotated[str, typer.Argument(help="A data set's name, a folder of images or a CSV file.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the data lie.")]
Scale = Annotated[float, typer.Option(help="The fraction of the data to use.")]
SkipBad = Annotated[bool, typer.Option(help="Leave out images that cannot be decoded, and list them.")]
Costs = Annotated[str, typer.Option(help="A CSV file by class name; or uniform, pareto:SEED, pmi.")]
Size = Annotated[int | None, typer.Option(min=8, help="Pixels to which the sides of images are brought.")]
Flip = Annotated[bool, typer.Option(help="Mirror training images: where left and right mean the same.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute; auto: a GPU if there is one.")]
Bundle = Annotated[Path, typer.Argument(help="A folder written by `csada train` or `csada fit`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what was found as JSON instead of a table.")]


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar fed by `update(done, total)`; nothing is drawn when the output is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_files(files: list[Path]) -> None:
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)


def load_data(
    data: str,
    data_dir: Path | None,
    scale: float,
    size: int | None,
    flip: bool,
    skip_bad: bool,
    bundle: dict[str, Any] | None = None,
) -> Splits:
    """The data; images in the size that the model of the bundle takes, unless told."""
    from csada.data import load

    takes = (bundle or {}).get("input")
    if size is None and takes and len(takes["shape"]) == 3 and takes_option(data, data_dir, "size"):
        size = takes["shape"][-1]
    given = {"size": size, "flip": flip, "skip_bad": skip_bad}
    with progress("decoding") as update:
        splits = load(data, data_dir, scale, on_progress=update, **{k: v for k, v in given.items() if v})
    for line in (*splits.warnings, *(f"left out: {name}" for name in splits.skipped)):
        errors.print(line, soft_wrap=True, markup=False, highlight=False)
    return splits


def takes_option(data: str, data_dir: Path | None, option: str) -> bool:
    from csada.data import find

    return option in inspect.signature(import_module(find(data, data_dir)[0]).load).parameters


def chosen_device(name: str) -> torch.device:
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {name!r}; known: auto, cpu, cuda")
    gpu = torch.cuda.is_available()
    if name == "cuda" and not gpu:
        raise InputError("PyTorch finds no GPU for --device cuda; leave it out, or give --device cpu")
    return torch.device("cuda" if gpu and name != "cpu" else "cpu")
