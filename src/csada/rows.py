"""From a CSV file to rows of text and numbers: the same functions for training and for use. Needs no PyTorch."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from csada.errors import InputError
from csada.files import regular

LARGEST = float(np.finfo(np.float32).max)


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, header first, with the number of their line."""
    try:
        with regular(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            yield from ((reader.line_num, [cell.strip() for cell in row]) for row in reader if row)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; save it as a CSV file in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {error}") from None


def number(line: int, column: str, text: str) -> float:
    """A number that a model can take: finite in single precision, and without the underscores that Python allows."""
    try:
        value = float(text if "_" not in text else "")
    except ValueError:
        value = np.inf
    if not abs(value) <= LARGEST:
        raise InputError(f"line {line}, column {column!r}: {text!r} is not a finite number")
    return value
