"""One table, three files: Markdown to read, CSV to compute with, LaTeX to print."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from csada.files import write_text
from csada.rows import cell as written

NONE = "–"  # what was not measured


class Value(NamedTuple):
    """A mean, its standard deviation over replications, and its change against its own baseline."""

    mean: float
    sd: float | None = None
    change: float | None = None
    unit: str = "%"  # of the change
    decimals: int = 2
    signed: bool = False  # a value that is itself a change

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return NONE
        text = f"{self.mean:{'+' if self.signed else ''}z.{self.decimals}f}"
        if self.sd is not None:
            text += f" ({self.sd:.{self.decimals}f})"
        if self.change is not None:
            text += f", {self.change:+z.{1 if self.unit == '%' else 2}f} {self.unit}"
        return text.replace("-", "−")


Cell = str | Value | None


@dataclass(frozen=True)
class Table:
    name: str  # of its files
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def numeric(self, column: int) -> list[Value]:
        return [row[column] for row in self.rows if isinstance(row[column], Value)]  # type: ignore[misc]


def shown(table: Table) -> list[list[str]]:
    """The cells as words; a first cell like the one above it stays empty."""
    rows = [[NONE if cell is None else str(cell) for cell in row] for row in table.rows]
    above = ["", *(row[0] for row in rows)]
    return [["" if row[0] == before else row[0], *row[1:]] for row, before in zip(rows, above, strict=False)]


def markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rules = ["---:" if table.numeric(i) else "---" for i in range(len(table.columns))]
    rows = [[markdown_escape(word) for word in row] for row in shown(table)]
    body = [line([markdown_escape(name) for name in table.columns]), line(rules), *map(line, rows)]
    parts = [f"**{markdown_escape(table.title)}**", "\n".join(body), *map(markdown_escape, table.notes)]
    return "\n\n".join(parts) + "\n"


def comma_separated(table: Table) -> str:
    """Plain numbers: a column of means is followed by its standard deviations and changes, where it has any."""
    header: list[str] = []
    rows: list[list[str]] = [[] for _ in table.rows]
    for i, name in enumerate(table.columns):
        values = table.numeric(i)
        units = sorted({value.unit for value in values if value.change is not None})
        spread = any(value.sd is not None for value in values)
        header += [name, *([f"{name}: sd"] if spread else []), *(f"{name}: change ({unit})" for unit in units)]
        for cells, row in zip(rows, table.rows, strict=True):
            cell = row[i]
            if isinstance(cell, Value):
                changes = [cell.change if unit == cell.unit else None for unit in units]
                cells += [_plain(number) for number in (cell.mean, *([cell.sd] if spread else []), *changes)]
            else:
                cells += [cell or "", *([""] * (spread + len(units)))]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([map(written, words) for words in [header, *rows]])
    return file.getvalue()


def latex(table: Table) -> str:
    """A floating table that needs no package."""
    align = "".join("r" if table.numeric(i) else "l" for i in range(len(table.columns)))
    rows = [[latex_escape(word) for word in row] for row in shown(table)]
    lines = [
        r"\begin{table*}[tb]",
        r"\centering\small",
        rf"\caption{{{latex_escape(table.title)}}}",
        rf"\label{{table:{table.name}}}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\hline",
        " & ".join(latex_escape(name) for name in table.columns) + r" \\ \hline",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\hline",
        r"\end{tabular}",
        *(rf"\par\footnotesize {latex_escape(note)}" for note in table.notes),
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


WRITERS = {"md": markdown, "csv": comma_separated, "tex": latex}


def write(table: Table, folder: str | os.PathLike[str]) -> list[Path]:
    """One file per format; the paths written."""
    return [write_text(Path(folder) / f"{table.name}.{suffix}", made(table)) for suffix, made in WRITERS.items()]


def markdown_escape(words: str) -> str:
    """Class names are anybody's: nothing in them may become HTML, a link or another column."""
    words = " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", words)


LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "−": "$-$",
        "→": r"$\to$",
        "–": "--",
    }
)


def latex_escape(words: str) -> str:
    return " ".join(words.split()).translate(LATEX)


def _plain(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:.6g}"
