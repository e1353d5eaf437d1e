"""A table of scores: what any model says of each sample, and the label where it is known. CSV, Parquet or NPZ.

    id,label,p:cat,p:dog      p: probabilities; z: instead are logits
    7,cat,0.9,0.1
    8,,0.4,0.6                no label: decided, but nothing is fitted to it

For csada these are samples of K numbers, whose network ("scores" of csada.models) takes the logarithm, or nothing at all.
Nobody is trained on them: a hash of its id decides whether a labelled row is validation or test, or a column `part` does.
Values are kept in float64, so that what is read decides as what was written; only a network takes float32.
"""

from __future__ import annotations

import lzma
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from csada import parquet
from csada.bounds import check
from csada.costs import did_you_mean
from csada.data.splits import PARTS, Part, Splits, as_ids, by_content, hashed, scaled
from csada.errors import InputError, explained
from csada.files import StrPath, regular
from csada.rows import MISSING, as_written, decimal_sign, number, read_table, repeated

PLACED = (".npz", parquet.SUFFIX)  # files that have rows and no lines
SUM = 2e-3  # by which probabilities may miss 1: what half precision loses
LEAST = float(np.finfo(np.float32).tiny)
CHUNK = 65_536  # rows read at once
MOST = 50_000  # labelled rows of validation, and of test: more take minutes and tell no more
NONE = -1  # no label
DAMAGED = (  # what reading the arrays of a ZIP file raises
    *(OSError, ValueError, EOFError, RuntimeError, SyntaxError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)

Floats = NDArray[np.float64]


class Chunk(NamedTuple):
    """Some rows as text and numbers, with their lines in the file, or their places."""

    lines: Sequence[int]
    texts: Sequence[Sequence[str]]  # ids, labels and, where there are any, parts
    values: Floats

    @property
    def ids(self) -> Sequence[str]:
        return self.texts[0]


@dataclass(frozen=True)
class ScoreTable:
    """classes in the order of their columns. parts: numbers of PARTS; None: by the ids."""

    name: str
    columns: tuple[str, ...]
    ids: tuple[str, ...]
    labels: NDArray[np.int64]  # [N], NONE where there is none
    values: Floats  # [N, K]
    parts: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(column.partition(":")[2] for column in self.columns)

    @cached_property
    def floor(self) -> float | None:
        """What a probability of 0 stands for: half of the least that the table shows. None of logits."""
        if kind(self.columns[0]) == "z":
            return None
        return max(float(np.min(self.values, where=self.values > 0, initial=1.0)) / 2, LEAST)

    def logits(self, rows: slice, floor: float | None = None) -> Floats:
        """floor: of the table that a rule was made from, instead of this one's."""
        some, least = self.values[rows], self.floor
        return some if least is None else np.log(np.maximum(some, least if floor is None else floor))

    @cached_property
    def fitting(self) -> list[NDArray[np.int64]]:
        """The rows of validation and test: labelled ones, MOST at most, which the hashes of their ids draw."""
        labelled = np.flatnonzero(self.labels != NONE)
        if self.parts is not None:
            found = [labelled[self.parts[labelled] == PARTS.index(part)] for part in PARTS[1:]]
        else:
            found = [labelled[index] for index in by_content(self.content[labelled], (50, 50), 0)]
        return [np.sort(rows[np.argsort(self.content[rows])[:MOST]]) for rows in found]

    @cached_property
    def content(self) -> NDArray[np.uint64]:
        return as_ids(hashed(each.encode(errors="surrogateescape") for each in self.ids))

    def splits(self) -> Splits:
        if not all(map(len, self.fitting)):
            raise InputError(
                f"{self.name} has {sum(map(len, self.fitting))} labelled rows for validation and test; each needs some: fill "
                "in labels. csada decide also decides rows without labels"
            )

        def part(rows: NDArray[np.int64]) -> Part:
            x = torch.from_numpy(self.values[rows].astype(np.float32))
            names = tuple(self.ids[i] for i in rows.tolist())
            return Part(x, torch.from_numpy(self.labels[rows]), content=self.content[rows], names=names)

        validation, test = map(part, self.fitting)
        return Splits(part(np.empty(0, np.int64)), validation, test, self.classes, self.name, columns=self.columns)


def load(path: StrPath, scale: float = 1.0, seed: int = 0) -> Splits:
    """The labelled rows, half validation and half test; there is nothing to train on. Another seed changes nothing."""
    return scaled(read(path).splits(), scale, seed)


def is_scores(path: Path) -> bool:
    """Whether a file is a table of scores: by its ending, or by its columns."""
    if path.suffix.lower() == ".npz":
        return True
    try:
        header, _ = read_table(path)
    except InputError:
        return False  # who reads it says why
    return sum(kind(name) is not None for name in header) > 1


def kind(column: str) -> str | None:
    """p: probabilities; z: logits; None: no column of scores."""
    return column[0] if column.startswith(("p:", "z:")) else None


def read(path: StrPath) -> ScoreTable:
    """The whole table, after every row was checked. Memory: about 8 bytes for each score and 100 for each id."""
    path = Path(path)
    with explained(f"{path} cannot be read"):
        regular(path)
    reader = {".npz": _npz, parquet.SUFFIX: _parquet}.get(path.suffix.lower(), _csv)
    columns, chunks = reader(path)
    classes = [name.partition(":")[2] for name in columns]
    numbers = {name: k for k, name in enumerate(classes)} | {name: NONE for name in MISSING if name not in classes}
    known: set[str] = set()
    ids: list[str] = []
    found: list[tuple[Any, ...]] = []
    for chunk in chunks:
        _check(path, chunk, columns, numbers, known)
        ids += chunk.ids
        check("rows", len(ids), f"{path} has more rows", more=True)
        _, labels, *given = chunk.texts
        parts = [np.array([PARTS.index(part) for part in texts]) for texts in given]
        found.append((np.array([numbers[label] for label in labels]), chunk.values, *parts))
    if not ids:
        raise InputError(f"{path} has no rows; it needs one for each sample")
    return ScoreTable(path.stem, tuple(columns), tuple(ids), *map(np.concatenate, zip(*found, strict=True)))


def _check(path: Path, chunk: Chunk, columns: Sequence[str], numbers: dict[str, int], known: set[str]) -> None:
    """Refuses the first row that cannot be used, and adds the ids to those known."""

    word = "row" if path.suffix.lower() in PLACED else "line"

    def refuse(i: int, why: str) -> None:
        raise InputError(f"{path}, {word} {chunk.lines[i]} (id {chunk.ids[i]!r}): {why}")

    for i, each in enumerate(chunk.ids):
        if not each or each in known:
            refuse(i, "the id is there already; each row needs its own" if each else "the id is empty")
        known.add(each)
    for i, label in enumerate(chunk.texts[1]):
        if label not in numbers:
            refuse(i, f"label {label!r} has no column{did_you_mean(label, [n for n, k in numbers.items() if k >= 0])}")
    for i, part in enumerate(chunk.texts[2] if chunk.texts[2:] else ()):
        if part not in PARTS:
            refuse(i, f"part is {part!r}; known: {', '.join(PARTS)}")
    wrong = ~np.isfinite(chunk.values) | (np.abs(chunk.values) > np.finfo(np.float32).max)
    needed = "a finite number is needed"
    if is_p := kind(columns[0]) == "p":
        wrong, needed = wrong | (chunk.values < 0), "a probability from 0 to 1 is needed"
    if wrong.any():
        i, k = map(int, np.argwhere(wrong)[0])
        refuse(i, f"{columns[k]} is {chunk.values[i, k]:g}; {needed}")
    sums = chunk.values.sum(1)
    if is_p and (off := np.flatnonzero(np.abs(sums - 1) > SUM)).size:
        refuse(int(off[0]), f"the probabilities sum to {sums[off[0]]:.4g}; they must sum to 1 (logits: z:CLASS)")


def _columns(path: Path, header: Sequence[str]) -> tuple[list[str], list[str]]:
    """The columns of scores; and id, label and, where it is there, part."""
    for name in ("id", "label"):
        if name not in header:
            extra = "; leave its cells empty where the truth is not known" if name == "label" else ""
            raise InputError(f"{path} has no column {name!r}{extra}")
    columns = [name for name in header if kind(name) is not None]
    others = ["id", "label", *(["part"] if "part" in header else [])]
    if len(columns) < 2 or len({kind(name) for name in columns}) > 1:
        found = ", ".join(columns) or "none"
        raise InputError(
            f"{path} has these columns of scores: {found}; two or more are needed, all p:CLASS or all z:CLASS"
        )
    check("classes", len(columns), f"{path} has columns for {len(columns):,} classes")
    used = [name for name in header if name in others or kind(name) is not None]
    names = [*others, *(name.partition(":")[2] for name in columns)]
    if twice := repeated(used) or repeated(names):
        raise InputError(f"{path} has several columns for {min(twice)!r}; one is needed")
    return columns, others


def _csv(path: Path) -> tuple[list[str], Iterator[Chunk]]:
    header, rows = read_table(path)
    columns, others = _columns(path, header)
    places, decimal = [header.index(name) for name in columns], decimal_sign(path)

    def numbers(line: int, row: list[str]) -> list[float]:
        try:
            return [number(line, columns[j], row[place], decimal) for j, place in enumerate(places)]
        except InputError as error:
            raise InputError(f"{path}, {error}") from None

    def chunks() -> Iterator[Chunk]:
        while some := list(islice(rows, CHUNK)):
            try:
                cells = [[row[place] for place in places] for _, row in some]
                if decimal != "." or any("_" in cell for row in cells for cell in row):  # NumPy reads 1_0 as 10
                    raise ValueError
                values = np.array(cells, np.float64)
            except ValueError:
                values = np.array([numbers(line, row) for line, row in some])
            texts = [[as_written(row[header.index(name)]) for _, row in some] for name in others]
            yield Chunk([line for line, _ in some], texts, values)

    return columns, chunks()


def _parquet(path: Path) -> tuple[list[str], Iterator[Chunk]]:
    """Batch by batch: a file may be larger than the memory, the scores in it not."""
    table = parquet.opened(path)
    columns, others = _columns(path, table.names)

    def chunks() -> Iterator[Chunk]:
        done = 0
        for batch in table.batches([*others, *columns]):
            texts = [table.texts(batch.column(name)) for name in others]
            try:
                values = [batch.column(name).to_numpy(zero_copy_only=False) for name in columns]
                numbers = np.stack(values, 1).astype(np.float64)
            except (ValueError, TypeError) as error:
                raise InputError(f"{path} holds something else than numbers: {str(error)[:200]}") from None
            lines = range(done + 1, done + len(texts[0]) + 1)
            done += len(lines)
            yield Chunk(lines, texts, numbers)

    return columns, chunks()


def _is_text(array: NDArray[Any]) -> bool:
    """Whether the characters of an array of text exist: NumPy reads any 32 bits for one."""
    if array.dtype.kind != "U" or not array.dtype.itemsize:
        return True
    codes = np.ascontiguousarray(array).view(array.dtype.byteorder + "u4")
    return not ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any()


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file, or those of these names."""
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            check("scores", unpacked, f"{path} holds arrays of {unpacked:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in (arrays.files if names is None else names) if name in arrays}
    except DAMAGED as error:
        if isinstance(error, InputError):
            raise
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} is no NPZ file of plain arrays: {why}") from None
    if strange := [name for name, each in found.items() if not isinstance(each, np.ndarray)]:
        raise InputError(f"{path}: {strange[0]} is no array; write the file with numpy.savez")
    return found


def _npz(path: Path) -> tuple[list[str], Iterator[Chunk]]:
    """Arrays id [N], label [N] and, if there is one, part [N], all text; classes [K], and p or z [N, K]."""
    found = read_arrays(path, ("id", "label", "part", "classes", "p", "z"))
    if strange := [name for name, each in found.items() if not _is_text(each)]:
        raise InputError(f"{path}: {strange[0]} holds text that is no Unicode")
    which = next((name for name in ("p", "z") if name in found), None)
    if which is None or "classes" not in found:
        raise InputError(
            f"{path} has the arrays {', '.join(found) or 'none'}; id, label, classes, and p or z are needed"
        )
    values = found[which]
    columns, others = _columns(path, [*found, *(f"{which}:{name}" for name in found["classes"].ravel().tolist())])
    texts = [list(map(str, found[name].ravel().tolist())) for name in others]
    if values.shape != (len(texts[0]), len(columns)) or any(len(each) != len(values) for each in texts):
        shapes = ", ".join(f"{name} {found[name].shape}" for name in (*others, "classes", which))
        raise InputError(f"the arrays of {path} do not fit together: {shapes}")
    if values.dtype.kind not in "fiu":
        raise InputError(f"{path}: {which} is {values.dtype}; numbers are needed")
    chunk = Chunk(range(1, len(values) + 1), texts, values.astype(np.float64))
    return columns, iter([chunk] if len(values) else [])
