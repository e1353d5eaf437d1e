"""What all commands share: the app, the consoles, the progress bar. Nothing heavy is imported before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
