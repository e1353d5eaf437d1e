"""From a CSV file to rows of text: one function for training and for use. Needs no PyTorch."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from csada.errors import InputError


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, header first, with the number of their line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            yield from ((reader.line_num, [cell.strip() for cell in row]) for row in reader if row)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; save it as a CSV file in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {error}") from None
