"""From a fitted model's folder to one page that explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from csada.cli.common import AsJson, app, show_files
from csada.errors import InputError
from csada.files import write_text


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder written by `csada fit`.")],
    out: Annotated[Path | None, typer.Option(help="The page; else report.html in the folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file that shows what was trained, what its mistakes cost before and after, and how sure that is.

    The file needs nothing beside it: it can be sent by mail and opened in any browser.

    Example: csada report out/fitted --out report.html
    """
    from csada.report import page

    evidence = page.read(folder)
    target = out or folder / "report.html"
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file, for example --out {target / 'report.html'}")
    text = page.page(evidence)
    try:
        write_text(target, text, errors="replace")  # names of folders need not be text
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}; choose another place with --out") from None
    if as_json:
        typer.echo(json.dumps({"report": str(target), **page.numbers(evidence)}, indent=1))
    else:
        show_files([target])
