"""Any CSV of numbers with a header: one column is the label, the others features, standardised by the training part."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch

from csada.costs import did_you_mean
from csada.data.augment import Normalization
from csada.data.splits import Part, Splits, scaled, stratified
from csada.errors import InputError
from csada.rows import read_rows


def load(path: str | os.PathLike[str], scale: float = 1.0, seed: int = 0, label: str | None = None) -> Splits:
    """60 % / 20 % / 20 %, stratified by class. `label` names the label's column; it is the last one unless told."""
    path = Path(path)
    header, rows = _read(path)
    label = header[-1] if label is None else label
    if label not in header:
        raise InputError(f"{path} has no column {label!r}{did_you_mean(label, header)}")
    column = header.index(label)
    for line, row in rows:
        if not row[column]:
            raise InputError(f"{path}, line {line} has no label in column {label!r}; fill it in or remove the line")
    names = [row[column] for _, row in rows]
    classes = _classes(path, names)
    x = np.array(
        [[_number(path, line, header[i], text) for i, text in enumerate(row) if i != column] for line, row in rows]
    )
    y = np.array([classes.index(name) for name in names])
    indices = stratified(y, (60, 20, 20), seed)
    if not all(map(len, indices)):
        raise InputError(f"{path} has too few rows ({len(rows)}) to be split into train, validation and test; add some")
    seen = x[indices[0]]
    # a feature that never changes keeps its scale: its deviation is zero, or a rounding error, which is worse
    std = np.where(seen.min(0) < seen.max(0), seen.std(0), 1.0)
    normalization = Normalization(tuple(seen.mean(0).tolist()), tuple(std.tolist()))
    whole = Part(torch.from_numpy(x).float(), torch.from_numpy(y), normalization)
    train, validation, test = (whole.take(index) for index in indices)
    columns = tuple(name for name in header if name != label)
    return scaled(Splits(train, validation, test, classes, path.stem, columns=columns), scale, seed)


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the rows with the number of their line."""
    (_, header), *rows = list(read_rows(path)) or [(0, [])]
    if not header:
        raise InputError(f"{path} is empty; it needs a header and rows of numbers")
    if len(header) < 2:
        raise InputError(
            f"{path} has the single column {header[0]!r}; it needs features and a label, separated by commas"
        )
    if twice := {name for name in header if header.count(name) > 1}:
        raise InputError(f"{path} has several columns named {sorted(twice)[0]!r}; rename them")
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}, line {line} has {len(row)} values; the header has {len(header)} columns")
    return header, rows


def _classes(path: Path, names: list[str]) -> tuple[str, ...]:
    """In order, numbers by their value: 9 before 10."""
    found = set(names)
    if len(found) < 2:
        raise InputError(
            f"{path} has labels of {len(found)} class; a classifier needs two or more (label= names the column)"
        )
    return tuple(sorted(found, key=(lambda name: (int(name), name)) if all(map(_is_integer, found)) else None))


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{path}, line {line}, column {column!r}: {text!r} is not a finite number; fill it in or remove it. "
            "If this column is the label, make it the last one"
        )
    return value
