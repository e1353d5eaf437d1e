"""From a CSV or Parquet file to rows of text and numbers: the same functions for training and for use. Needs no PyTorch.

A Parquet file is read as the CSV file that pandas would write of it: the same lines, words, numbers and missing cells.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from csada import parquet
from csada.bounds import check, most
from csada.errors import InputError, explained
from csada.files import regular

LARGEST = float(np.finfo(np.float32).max)
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null")  # cells that hold no value
DECIMALS = re.compile(r"[+-]?\d*([.,])\d+(?:[eE][+-]?\d+)?")
FORMULA = re.compile(r"'*[=+\-@\t\r]")
SIGNED = re.compile(r"[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?|-")
AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")  # thousands in some countries, decimals in others


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, header first, with the number of their line; of a Parquet file, few at a time."""
    if parquet.is_parquet(path):
        yield from _parquet_rows(path)
        return
    widest = most("columns")
    with _opened(path) as (file, separator):
        reader = csv.reader(_lines(file, path), delimiter=separator, strict=True)
        for row in reader:
            if len(row) > widest:
                check("columns", len(row), f"{path}, line {reader.line_num} has {len(row):,} columns")
            if row:
                yield reader.line_num, [cell.strip() for cell in row]


def read_table(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header, empty where the file is, and the rows with the number of their line, each as long as the header."""
    rows = read_rows(path)
    _, header = next(rows, (0, list[str]()))
    longest = most("rows")

    def checked() -> Iterator[tuple[int, list[str]]]:
        for number, (line, row) in enumerate(rows, start=1):
            if number > longest:
                check("rows", number, f"{path} has more rows", more=True)
            if len(row) != len(header):
                raise InputError(f"{path}, line {line} has {len(row)} values; the header has {len(header)} columns")
            yield line, row

    return header, checked()


def records(path: Path) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """The same by the names of the columns, each cell as it was written. A name twice is refused."""
    header, rows = read_table(path)
    check_names(path, filter(None, header))
    return header, ((line, dict(zip(header, map(as_written, row), strict=True))) for line, row in rows)


def repeated(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def check_names(path: Path, header: Iterable[str]) -> None:
    if twice := repeated(header):
        raise InputError(f"{path} has several columns named {twice[0]!r}; rename them")


def _parquet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    table = parquet.opened(path)
    # an index of pandas comes first and has no name, as in a CSV file
    order = sorted(range(len(table.names)), key=lambda place: not parquet.INDEX.fullmatch(table.names[place]))
    yield 1, [parquet.INDEX.sub("", table.names[place]).strip() for place in order]
    line = count(2)
    for batch in table.batches():
        columns = [table.texts(batch.column(place)) for place in order]
        yield from ((next(line), list(row)) for row in zip(*columns, strict=True))


def decimal_sign(path: Path) -> str:
    """A point where commas separate the cells; else what the numbers show: a point, a comma, both or neither."""
    if parquet.is_parquet(path):
        return "."
    with _opened(path) as (_, separator):
        if separator == ",":
            return "."
    cells = (cell for _, row in read_rows(path) for cell in row if not AMBIGUOUS.fullmatch(cell))
    return "".join(sorted({found[1] for cell in cells if (found := DECIMALS.fullmatch(cell))}))


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    longest = most("line")
    while line := file.readline(longest + 1):
        if len(line) > longest:
            check("line", len(line), f"{path} has a line of more letters and may be no CSV file", more=True)
        yield line


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[str], str]]:
    """The file, and what separates its cells: the header's first comma, semicolon or tab outside of quotes."""
    try:
        with explained(f"{path} cannot be read"), regular(path).open(newline="", encoding="utf-8-sig") as file:
            header = next((line for line in _lines(file, path) if line.strip()), "")
            found = re.search("[,;\t]", re.sub('"[^"]*"', "", header))
            file.seek(0)
            yield file, found[0] if found else ","
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; save it as a CSV file in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {error}") from None


def cell(text: str) -> str:
    """A text for a CSV file that people open: no spreadsheet takes it for a formula."""
    return f"'{text}" if FORMULA.match(text) and not SIGNED.fullmatch(text) else text


def as_written(text: str) -> str:
    """What `cell` was given."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def number(line: int, column: str, text: str, decimal: str = ".") -> float:
    """A number that a model can take: finite in single precision, and without the underscores that Python allows.

    decimal: the file's `decimal_sign`. What may be thousands or decimals is refused unless the file shows which.
    """
    if (found := AMBIGUOUS.fullmatch(text)) and found[1] != decimal:
        raise InputError(
            f"line {line}, column {column!r}: {text!r} may be thousands or decimals; write {text.replace(found[1], '')} "
            f"or {text}0"
        )
    try:
        value = float("" if "_" in text else text.replace(",", ".") if "," in decimal else text)
    except ValueError:
        value = np.inf
    if not abs(value) <= LARGEST:
        raise InputError(f"line {line}, column {column!r}: {text[:80]!r} is not a finite number")
    return value


def numbers_or_nan(texts: Sequence[str], decimal: str = ".") -> NDArray[np.float64] | None:
    """Many at once, as `number_or_nan` reads each; None where that refuses one, or decimals are not points."""
    missing = [text in MISSING for text in texts]
    if decimal != ".":
        return None
    try:
        found = np.array(["nan" if none else text for none, text in zip(missing, texts, strict=True)], np.float64)
    except ValueError:
        return None
    plain = np.array_equal(~(np.abs(found) <= LARGEST), missing) and not any("_" in text for text in texts)
    return found if plain else None


def number_or_nan(line: int, column: str, text: str, decimal: str = ".") -> float:
    """NaN where the value is missing."""
    return math.nan if text in MISSING else number(line, column, text, decimal)


def encoded(
    numbers: NDArray[np.floating], words: NDArray[np.object_], categories: Sequence[Sequence[str]]
) -> NDArray[Any]:
    """[N, features]: the numbers, then for each column of words a feature per category, which is 1 where it is that one.

    A missing word is NaN in all of them, as a missing number is. A word that is no category is 0 in all of them.
    """
    blocks = [
        np.where(np.isin(column, MISSING)[:, None], np.nan, column[:, None] == np.array(known, object))
        for column, known in zip(words.T, categories, strict=True)
    ]
    return np.concatenate([numbers, *blocks], 1) if blocks else numbers


def unknown(columns: Sequence[str], words: NDArray[np.object_], categories: Sequence[Sequence[str]]) -> Counter[str]:
    """How many cells of each column hold a word that is no category of it."""
    pairs = zip(columns, words.T, categories, strict=True)
    return Counter({name: sum(word not in (*known, *MISSING) for word in column) for name, column, known in pairs})


def said_of_unknown(found: Counter[str]) -> Iterator[str]:
    for name, cells in found.items():
        if cells:
            hold = "1 cell holds" if cells == 1 else f"{cells:,} cells hold"
            yield f"column {name!r}: {hold} a category that training lacks; unknown ones count as none of its categories"
