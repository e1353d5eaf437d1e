"""Any CSV of numbers with a header: one column is the label, the others features, standardised by the training part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from csada.costs import did_you_mean
from csada.data.augment import Normalization
from csada.data.splits import PARTS, Part, Splits, by_content, content_ids, repeated, scaled, unrepresented
from csada.errors import InputError
from csada.files import StrPath
from csada.rows import decimal_sign, number, read_rows

MANY = 10, 200  # classes: fewer are never too many, more always
NUMBER = re.compile(r"[+-]?(\d+|\d*[.,]\d+)([eE][+-]?\d+)?")
INDEX = ("", "Unnamed: 0")  # how pandas writes its index, and how it names one that it has read


def load(
    path: StrPath,
    scale: float = 1.0,
    seed: int = 0,
    label: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> Splits:
    """60 % / 20 % / 20 %. `label` names the label's column; it is the last one unless told. `ignore`: no features.

    columns: the features by name, such as those of a classifier; the table may have others, which are not read.
    A row's own features decide its part, so other rows, other labels or another order of the columns never move it.
    """
    path = Path(path)
    header, rows, warnings = _read(path, label)
    label, features = _roles(path, header, label, [ignore] if isinstance(ignore, str) else ignore, columns)
    column, places = header.index(label), [header.index(name) for name in features]
    for line, row in rows:
        if not row[column]:
            raise InputError(f"{path}, line {line} has no label in column {label!r}; fill it in or remove the line")
    names = [row[column] for _, row in rows]
    classes = _classes(path, names)
    decimal = decimal_sign(path)
    try:
        x = np.array([[number(line, header[i], row[i], decimal) for i in places] for line, row in rows])
    except InputError as error:
        raise InputError(
            f"{path}, {error}; fill it in or remove it. --label NAME names the label, --ignore NAME what is no feature"
        ) from None
    if columns is None:
        warnings += [f"{path}: {odd}" for odd in _odd(label, classes, features, x)]
    y = np.array([classes.index(name) for name in names])
    ids = content_ids(torch.from_numpy(x[:, np.argsort(features)] + 0.0))  # -0 is 0
    if same := repeated(ids, [f"line {line}" for line, _ in rows], names):
        warnings.append(f"{path}: the same numbers in two classes: {same}; keep the right ones")
    indices = by_content(ids, (60, 20, 20), seed)
    if not all(map(len, indices)):
        raise InputError(f"{path} has too few rows ({len(rows)}) to be split into train, validation and test; add some")
    labels = dict(zip(PARTS, (y[index] for index in indices), strict=True))
    for part, absent in unrepresented(labels, classes).items():
        lacks = f"{path}: {part} has no row of {absent}; add some, or take these classes out"
        if part == "train":
            many = _too_many(label, classes, len(rows))
            raise InputError(f"{path}: {many}" if many else lacks)
        warnings.append(lacks)
    seen = x[indices[0]]
    # a feature that never changes keeps its scale: its deviation is zero, or a rounding error, which is worse
    std = np.where(seen.min(0) < seen.max(0), seen.std(0), 1.0)
    normalization = Normalization(tuple(seen.mean(0).tolist()), tuple(std.tolist()))
    whole = Part(torch.from_numpy(x).float(), torch.from_numpy(y), normalization, content=ids)
    train, validation, test = (whole.take(index) for index in indices)
    return scaled(
        Splits(train, validation, test, classes, path.stem, columns=features, warnings=tuple(warnings)), scale, seed
    )


def _roles(
    path: Path, header: list[str], label: str | None, ignore: Sequence[str], columns: Sequence[str] | None
) -> tuple[str, tuple[str, ...]]:
    """The label, and the features in the order of the table."""
    for name in ([] if label is None else [label]) + ([] if columns else [*ignore]):
        if name not in (*header, *INDEX):  # an index is left out already
            raise InputError(f"{path} has no column {name!r}{did_you_mean(name, header)}")
    left = [name for name in header if name not in ignore]
    labels = [name for name in left if name not in (columns or ())] if label is None else [label]
    if not labels or labels[-1] not in left:
        which = "" if label is None else f" {label!r}"
        raise InputError(f"{path} has no column{which} that may be the label; --label NAME names another one")
    features = [name for name in left if name != labels[-1]]
    if columns is not None:
        for name in columns:
            if name not in features:
                raise InputError(f"{path} has no feature {name!r}; the classifier takes {', '.join(columns)}")
        features = [name for name in features if name in columns]
    if not features:
        raise InputError(f"{path} has no feature beside the label {labels[-1]!r}; ignore fewer columns")
    return labels[-1], tuple(features)


def _read(path: Path, label: str | None) -> tuple[list[str], list[tuple[int, list[str]]], list[str]]:
    """The header, the rows with the number of their line, and what was left out."""
    (_, header), *rows = list(read_rows(path)) or [(0, [])]
    if not header:
        raise InputError(f"{path} is empty; it needs a header and rows of numbers")
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}, line {line} has {len(row)} values; the header has {len(header)} columns")
    warnings = []
    if header[0] in INDEX and header[0] != label:
        header, rows = header[1:], [(line, row[1:]) for line, row in rows]
        warnings.append(f"{path}: the first column is an index and was left out; name it if it is a feature")
    if len(header) < 2:
        raise InputError(
            f"{path} has the single column {header[0]!r}; it needs features and a label, with commas between (or ; or tabs)"
        )
    if twice := {name for name in header if header.count(name) > 1}:
        raise InputError(f"{path} has several columns named {sorted(twice)[0]!r}; rename them")
    if "" in header:
        raise InputError(f"{path}: column {header.index('') + 1} has no name; name it or remove it")
    return header, rows, warnings


def _odd(label: str, classes: tuple[str, ...], features: tuple[str, ...], x: NDArray[np.float64]) -> Iterator[str]:
    """What looks like a mistake about the columns."""
    if all(map(NUMBER.fullmatch, features)) and (NUMBER.fullmatch(label) or label in classes):
        yield "the first row looks like data; put a row with the names of the columns above it"
    for name, values in zip(features, x.T, strict=True):
        is_named = re.fullmatch(r"(.*_)?id", name, re.IGNORECASE)
        if len(np.unique(values)) == len(values) and (is_named or not np.any(values % 1)):
            yield f"column {name!r} has another value in every row; if it is an id and no feature: --ignore {name}"
    if said := _too_many(label, classes, len(x)):
        yield said


def _too_many(label: str, classes: tuple[str, ...], rows: int) -> str | None:
    if len(classes) <= min(max(rows / 10, MANY[0]), MANY[1]):
        return None
    return (
        f"column {label!r} has {len(classes)} different values in {rows} rows; is it the label? --label NAME names it"
    )


def _classes(path: Path, names: list[str]) -> tuple[str, ...]:
    """In order, numbers by their value: 9 before 10."""
    found = set(names)
    if len(found) < 2:
        raise InputError(
            f"{path} has labels of {len(found)} class; two or more are needed (--label NAME names the column)"
        )
    whole = all(re.fullmatch(r"[+-]?\d+", name) for name in found)
    return tuple(sorted(found, key=(lambda name: (int(name), name)) if whole else None))
