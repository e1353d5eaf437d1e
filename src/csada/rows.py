"""From a CSV file to rows of text and numbers: the same functions for training and for use. Needs no PyTorch."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from csada.errors import InputError
from csada.files import regular

LARGEST = float(np.finfo(np.float32).max)


DECIMALS = re.compile(r"[+-]?\d*([.,])\d+(?:[eE][+-]?\d+)?")
AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")  # thousands in some countries, decimals in others


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, header first, with the number of their line."""
    with _opened(path) as (file, separator):
        reader = csv.reader(file, delimiter=separator, strict=True)
        yield from ((reader.line_num, [cell.strip() for cell in row]) for row in reader if row)


def decimal_sign(path: Path) -> str:
    """A point where commas separate the cells; else what the numbers show: a point, a comma, both or neither."""
    with _opened(path) as (_, separator):
        if separator == ",":
            return "."
    cells = (cell for _, row in read_rows(path) for cell in row if not AMBIGUOUS.fullmatch(cell))
    return "".join(sorted({found[1] for cell in cells if (found := DECIMALS.fullmatch(cell))}))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[str], str]]:
    """The file, and what separates its cells: the header's first comma, semicolon or tab outside of quotes."""
    try:
        with regular(path).open(newline="", encoding="utf-8-sig") as file:
            header = next((line for line in file if line.strip()), "")
            found = re.search("[,;\t]", re.sub('"[^"]*"', "", header))
            file.seek(0)
            yield file, found[0] if found else ","
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; save it as a CSV file in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {error}") from None


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
        raise InputError(f"line {line}, column {column!r}: {text!r} is not a finite number")
    return value
