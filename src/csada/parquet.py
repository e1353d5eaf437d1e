"""Parquet files: larger than the memory, or made to fill it. Their footer is checked, then they are read in batches.

Columns hold numbers, words, dates or yes and no; a nested column or one of bytes is refused. pyarrow is optional.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csada.bounds import check
from csada.errors import InputError
from csada.files import regular

SUFFIX = ".parquet"
CELLS = 1 << 18  # of a batch
INDEX = re.compile(r"__index_level_\d+__")  # how pandas names an index that has no name


@dataclass(frozen=True)
class Table:
    path: Path
    file: Any  # pyarrow's
    names: tuple[str, ...]

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Any]:
        """Some rows at a time, of the columns that are named or of all."""
        with _told(self.path):
            rows = max(1, min(CELLS // max(len(self.names if names is None else names), 1), 1 << 16))
            yield from self.file.iter_batches(rows, columns=None if names is None else list(names))

    def texts(self, column: Any) -> list[str]:
        """As pandas would write them to a CSV file; nothing where a value is missing."""
        from pyarrow import types

        with _told(self.path):
            if types.is_dictionary(column.type):
                words = self.texts(column.dictionary)
                return ["" if code is None else words[code] for code in column.indices.to_pylist()]
            values = column.to_pylist()
            if types.is_float16(column.type) or types.is_float32(column.type):
                # 0.1, not what it is in double precision
                numbers = [0 if value is None else value for value in values]
                short = np.array(numbers, column.type.to_pandas_dtype()).astype(str).tolist()
                return ["" if value is None else text for value, text in zip(values, short, strict=True)]
            found = ["" if value is None else str(value).strip() for value in values]
            if (longest := max(map(len, found), default=0)) > (most := csv.field_size_limit()):
                raise InputError(
                    f"{self.path} has a cell of {longest:,} letters; at most {most:,} are read, as of a CSV file"
                )
            return found


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def opened(path: Path) -> Table:
    """The file, after what its footer promises was found to be within the bounds; no page is read yet."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path} needs pyarrow: pip install 'csada[parquet]', or save it as CSV") from None
    with _told(path):
        file = parquet.ParquetFile(regular(path))
        about, names = file.metadata, tuple(file.schema_arrow.names)
        check("columns", about.num_columns, f"{path} has {about.num_columns:,} columns")
        check("cells", found := about.num_rows * about.num_columns, f"{path} has {found:,} cells")
        for g in range(about.num_row_groups):
            group = about.row_group(g)
            largest = max((group.column(c).total_uncompressed_size for c in range(group.num_columns)), default=0)
            check("group", largest, f"{path} has {largest:,} bytes of one column in row group {g + 1}")
        for each in file.schema_arrow:
            if not _plain(each.type):
                raise InputError(
                    f"{path}: column {each.name!r} holds {str(each.type)[:80]}; a table has numbers and words: leave it out"
                )
        words = [each.name for each in file.schema_arrow if _is_text(each.type)]
        # each word of a page once, however many rows have it: a long one may stand in millions
        return Table(
            path,
            parquet.ParquetFile(path, metadata=about, buffer_size=1 << 18, pre_buffer=False, read_dictionary=words),
            names,
        )


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _plain(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    known = ("boolean", "integer", "floating", "decimal", "date", "time", "timestamp", "null")
    return _is_text(kind) or any(getattr(types, f"is_{name}")(kind) for name in known)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever pyarrow finds, in one line."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} is no Parquet file, or is damaged: {why}") from None
