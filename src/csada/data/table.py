"""Any CSV with a header: one column is the label, the others features, numbers or words, encoded by the training part.

Numbers are standardised. A column of words is categorical: one feature per category of the training part, 0 or 1. A missing
number becomes the median of the training part, a missing word its most frequent category.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from csada.bounds import check
from csada.costs import did_you_mean
from csada.data.augment import Normalization
from csada.data.splits import PARTS, Part, Splits, by_content, content_ids, hashed, repeated, scaled, unrepresented
from csada.errors import InputError
from csada.files import StrPath
from csada.rows import MISSING, decimal_sign, encoded, number_or_nan, read_rows, said_of_unknown, unknown

MANY = 10, 200  # classes: fewer are never too many, more always
MANY_CATEGORIES = 50  # and a tenth of the rows: more make a column look like an id
MOST_CATEGORIES = 1000  # each is a feature
WORDS = 0.1  # a column of numbers and words is categorical from this share of words on; fewer are typing mistakes
NUMBER = re.compile(r"[+-]?(\d+|\d*[.,]\d+)([eE][+-]?\d+)?")
LIKE_NUMBER = re.compile(r"[+-]?\d[\d.,_]*([eE][+-]?\d+)?")
INDEX = ("", "Unnamed: 0")  # how pandas writes its index, and how it names one that it has read

Categories = Sequence[Sequence[str]]


def load(
    path: StrPath,
    scale: float = 1.0,
    seed: int = 0,
    label: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: Sequence[str] | None = None,
    categories: Categories = (),
    normalization: Normalization | None = None,
) -> Splits:
    """60 % / 20 % / 20 %. `label` names the label's column; by default the last one. `ignore`: no features.

    columns: the features by name; the table may have others, which are not read. With a normalisation these and the
    categories of the last of them are a classifier's own, and nothing is learned from this table.
    A row's own features decide its part, so other rows, other labels or another order of the columns never move it.
    """
    path = Path(path)
    header, rows, warnings = _read(path, label)
    label, features = _roles(path, header, label, [ignore] if isinstance(ignore, str) else ignore, columns)
    at = header.index(label)
    for line, row in rows:
        if row[at] in MISSING:
            raise InputError(f"{path}, line {line} has no label in column {label!r}; fill it in or remove the line")
    names = [row[at] for _, row in rows]
    classes = _classes(path, names)
    check("classes", len(classes), f"{path} has {len(classes):,} classes in column {label!r}")
    decimal = decimal_sign(path)
    places = {name: place for place, name in enumerate(header)}
    cells = {name: _column(name, places[name], rows, decimal) for name in features}
    ids = content_ids(torch.from_numpy(np.stack([cells[name].raw for name in sorted(features)], 1)))
    if same := repeated(ids, [f"line {line}" for line, _ in rows], names):
        warnings.append(f"{path}: the same values in two classes: {same}; keep the right ones")
    indices = by_content(ids, (60, 20, 20), seed)
    own = columns is None or normalization is None
    order = features if own or columns is None else tuple(columns)
    categorical = list(order[len(order) - len(categories) :])
    if own:
        categorical = [name for name in order if cells[name].is_words(indices[0])]
    for name in features:
        if name not in categorical and cells[name].wrong:
            raise InputError(
                f"{path}, {next(iter(cells[name].wrong.values()))}; correct it, or leave it empty if it is missing. "
                "--label NAME names the label, --ignore NAME what is no feature"
            )
    number = {name: k for k, name in enumerate(classes)}
    y = np.array([number[name] for name in names])
    if not all(map(len, indices)):
        raise InputError(f"{path} has too few rows ({len(rows)}) to be split into train, validation and test; add some")
    labels = dict(zip(PARTS, (y[index] for index in indices), strict=True))
    for part, absent in unrepresented(labels, classes).items():
        lacks = f"{path}: {part} has no row of {absent}; add some, or take these classes out"
        if part == "train":
            many = _too_many(label, classes, len(rows))
            raise InputError(f"{path}: {many}" if many else lacks)
        warnings.append(lacks)
    columns = (*(name for name in order if name not in categorical), *categorical)
    n = len(columns) - len(categorical)
    by_column = np.array([cells[name].values for name in columns[:n]]).reshape(n, len(rows))
    numbers = by_column.T.copy()  # row by row in memory, on which the last digits of the means depend
    words = np.array([cells[name].texts for name in categorical], object).reshape(-1, len(rows)).T
    if own or normalization is None:
        categories, normalization = _learned(path, columns, numbers[indices[0]], words[indices[0]])
        warnings += [f"{path}: {said}" for said in _said(cells, dict(zip(categorical, categories, strict=True)))]
        warnings += [f"{path}: {odd}" for odd in _odd(label, classes, columns, numbers)]
    warnings += [f"{path}: {line}" for line in said_of_unknown(unknown(categorical, words, categories))]
    x = torch.from_numpy(encoded(numbers, words, categories)).float()
    whole = Part(x, torch.from_numpy(y), normalization, content=ids, names=tuple(map(str, range(1, len(rows) + 1))))
    train, validation, test = (whole.take(index) for index in indices)
    told: dict[str, Any] = {"categories": tuple(map(tuple, categories)), "warnings": tuple(warnings)}
    return scaled(Splits(train, validation, test, classes, path.stem, columns=columns, **told), scale, seed)


@dataclass(frozen=True)
class _Column:
    texts: list[str]
    values: NDArray[np.float64]  # NaN where there is no number
    wrong: dict[int, str]  # by row: why a cell that is not missing is no number

    @property
    def raw(self) -> NDArray[np.float64]:
        """8 bytes for each cell that depend on nothing else: its number, NaN where it is missing, or a hash of its word."""
        raw = self.values + 0.0  # -0 is 0
        raw[list(self.wrong)] = np.frombuffer(hashed(self.texts[i].encode() for i in self.wrong), "<f8")
        return raw

    def is_words(self, train: NDArray[np.int64]) -> bool:
        """Whether it is categorical. If nearly all cells are numbers, the others count as typing mistakes."""
        if self.wrong.keys().isdisjoint(train.tolist()):
            return False
        words = sum(not LIKE_NUMBER.fullmatch(self.texts[i]) for i in self.wrong)
        return words > WORDS * (len(self.texts) - self.missing)

    @property
    def missing(self) -> int:
        return sum(text in MISSING for text in self.texts)


def _column(name: str, place: int, rows: list[tuple[int, list[str]]], decimal: str) -> _Column:
    values, wrong = np.full(len(rows), np.nan), {}
    for i, (line, row) in enumerate(rows):
        try:
            values[i] = number_or_nan(line, name, row[place], decimal)
        except InputError as error:
            wrong[i] = str(error)
    return _Column([row[place] for _, row in rows], values, wrong)


def _learned(
    path: Path, columns: tuple[str, ...], numbers: NDArray[np.float64], words: NDArray[np.object_]
) -> tuple[tuple[tuple[str, ...], ...], Normalization]:
    """The categories, and what is filled in and standardised, of the rows that are given: the training part."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    blank = words.copy()
    blank[np.isin(words, MISSING)] = None
    for name, is_missing in zip(columns, [*np.isnan(numbers).T, *np.isin(words, MISSING).T], strict=True):
        if is_missing.all():
            raise InputError(
                f"{path}: column {name!r} has no value in the training part; leave it out: --ignore {name}"
            )
    for name, column in zip(columns[numbers.shape[1] :], blank.T, strict=True):
        if (n := len(set(column))) > MOST_CATEGORIES:
            raise InputError(
                f"{path}: column {name!r} has {n:,} categories; at most {MOST_CATEGORIES:,} can be used: --ignore {name}"
            )
    fill, mean, std = np.empty((3, 0))
    categories: tuple[tuple[str, ...], ...] = ()
    if numbers.shape[1]:
        fill = SimpleImputer(strategy="median").fit(numbers).statistics_
        seen = np.where(np.isnan(numbers), fill, numbers)
        # a feature that never changes keeps its scale: its deviation is zero, or a rounding error, which is worse
        mean, std = seen.mean(0), np.where(seen.min(0) < seen.max(0), seen.std(0), 1.0)
    if words.shape[1]:
        imputer = SimpleImputer(missing_values=None, strategy="most_frequent").fit(blank)
        encoder = OneHotEncoder(sparse_output=False).fit(imputer.transform(blank))
        categories = tuple(tuple(map(str, known)) for known in encoder.categories_)
        usual = encoder.transform(imputer.statistics_[None])[0]
        fill, mean, std = (np.append(a, b) for a, b in ((fill, usual), (mean, 0 * usual), (std, 0 * usual + 1)))
    return categories, Normalization(tuple(mean.tolist()), tuple(std.tolist()), fill=tuple(fill.tolist()))


def _said(cells: dict[str, _Column], categories: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """What was found in the columns."""
    if categories:
        yield "categorical: " + ", ".join(f"{name} ({len(known)} categories)" for name, known in categories.items())
    if missing := [f"{name} ({n} cell{'s' * (n > 1)})" for name, column in cells.items() if (n := column.missing)]:
        yield f"missing: {', '.join(missing)}; the training part's median or most frequent category stands for them"
    for name in categories:
        different, rows = len(set(cells[name].texts)), len(cells[name].texts)
        if different > max(MANY_CATEGORIES, rows / 10):
            odd = f"column {name!r} has {different} different words in {rows} rows"
            yield f"{odd}; if they are ids or free text: --ignore {name}"


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
        known = set(features)
        for name in columns:
            if name not in known:
                raise InputError(f"{path} has no feature {name!r}; the classifier takes {', '.join(columns)}")
        features = [name for name in features if name in columns]
    if not features:
        raise InputError(f"{path} has no feature beside the label {labels[-1]!r}; ignore fewer columns")
    return labels[-1], tuple(features)


def _read(path: Path, label: str | None) -> tuple[list[str], list[tuple[int, list[str]]], list[str]]:
    """The header, the rows with the number of their line, and what was left out."""
    with suppress(OSError):  # who reads it says what is wrong
        check("table", size := path.stat().st_size, f"{path} has {size:,} bytes")
    (_, header), *rows = list(read_rows(path)) or [(0, [])]
    if not header:
        raise InputError(f"{path} is empty; it needs a header and rows")
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
    if twice := sorted(name for name, times in Counter(header).items() if times > 1):
        raise InputError(f"{path} has several columns named {twice[0]!r}; rename them")
    if "" in header:
        raise InputError(f"{path}: column {header.index('') + 1} has no name; name it or remove it")
    return header, rows, warnings


def _odd(label: str, classes: tuple[str, ...], features: tuple[str, ...], x: NDArray[np.float64]) -> Iterator[str]:
    """What looks like a mistake about the columns."""
    if all(map(NUMBER.fullmatch, features)) and (NUMBER.fullmatch(label) or label in classes):
        yield "the first row looks like data; put a row with the names of the columns above it"
    for name, values in zip(features, x.T, strict=False):  # numbers come first
        values = values[~np.isnan(values)]
        is_named = re.fullmatch(r"(.*_)?id", name, re.IGNORECASE)
        if 1 < len(np.unique(values)) == len(values) and (is_named or not np.any(values % 1)):
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
