"""A CSV or Parquet file: one column is the label, the others features, numbers or words, encoded by the training part.

Numbers are standardised. A column of words is categorical: one feature per category of the training part, 0 or 1. A missing
number becomes the median of the training part, a missing word its most frequent category.

Rows are read some at a time and kept as 8 bytes per cell. The text of a categorical column is read again, each word kept once.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
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
from csada.parquet import is_parquet
from csada.rows import (
    MISSING,
    check_names,
    decimal_sign,
    encoded,
    number_or_nan,
    numbers_or_nan,
    read_table,
    said_of_unknown,
    unknown,
)

CELLS = 1 << 18  # whose text is held at a time
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
    header, first, warnings = _header(path, label)
    label, features = _roles(path, header, label, [ignore] if isinstance(ignore, str) else ignore, columns)
    places = {name: place for place, name in enumerate(header, start=first)}
    cells, decimal = {name: _Column(name) for name in features}, decimal_sign(path)
    lines, names, known = array("q"), list[str](), dict[str, str]()
    for some, texts in _chunks(path):
        for line, name in zip(some, texts[places[label]], strict=True):
            if name in MISSING:
                raise InputError(f"{path}, line {line} has no label in column {label!r}; fill it in or remove the line")
            names.append(known.setdefault(name, name))
        lines.extend(some)
        for name, column in cells.items():
            column.add(some, texts[places[name]], decimal)
    classes = _classes(path, names)
    check("classes", len(classes), f"{path} has {len(classes):,} classes in column {label!r}")
    for column in cells.values():
        column.end()
    ids = _ids([cells[name].raw for name in sorted(features)])
    if same := repeated(ids, lambda i: f"line {lines[i]}", names):
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
                f"{path}, {cells[name].wrong}; correct it, or leave it empty if it is missing. "
                "--label NAME names the label, --ignore NAME what is no feature"
            )
    number = {name: k for k, name in enumerate(classes)}
    y = np.array([number[name] for name in names])
    if not all(map(len, indices)):
        raise InputError(
            f"{path} has too few rows ({len(names)}) to be split into train, validation and test; add some"
        )
    labels = dict(zip(PARTS, (y[index] for index in indices), strict=True))
    for part, absent in unrepresented(labels, classes).items():
        lacks = f"{path}: {part} has no row of {absent}; add some, or take these classes out"
        if part == "train":
            many = _too_many(label, classes, len(names))
            raise InputError(f"{path}: {many}" if many else lacks)
        warnings.append(lacks)
    columns = (*(name for name in order if name not in categorical), *categorical)
    n, missing = len(columns) - len(categorical), {name: cells[name].missing for name in features}
    numbers = np.empty((len(names), n))  # row by row in memory, on which the last digits of the means depend
    for k, name in enumerate(columns[:n]):
        numbers[:, k] = cells.pop(name).values
    words = _words(path, [places[name] for name in categorical], len(names))
    if own or normalization is None:
        categories, normalization = _learned(path, columns, numbers[indices[0]], words[indices[0]])
        warnings += [
            f"{path}: {said}" for said in _said(missing, dict(zip(categorical, categories, strict=True)), words)
        ]
        warnings += [f"{path}: {odd}" for odd in _odd(label, classes, columns, numbers)]
    warnings += [f"{path}: {line}" for line in said_of_unknown(unknown(categorical, words, categories))]
    x = torch.from_numpy(encoded(numbers, words, categories)).float()
    whole = Part(x, torch.from_numpy(y), normalization, content=ids, names=tuple(map(str, range(1, len(names) + 1))))
    train, validation, test = (whole.take(index) for index in indices)
    told: dict[str, Any] = {"categories": tuple(map(tuple, categories)), "warnings": tuple(warnings)}
    return scaled(Splits(train, validation, test, classes, path.stem, columns=columns, **told), scale, seed)


class _Column:
    """The cells of a column, of which the text is not kept."""

    def __init__(self, name: str):
        self.name = name
        self.wrong = ""  # why the first that is no number is none
        self.words = 0  # cells that do not even look like a number
        self._chunks = list[tuple[NDArray[np.float64], NDArray[np.bool_]]]()
        # 8 bytes for each cell that depend on nothing else: its number, NaN where it is missing, or a hash of its word
        self.raw, self.is_word = np.empty(0), np.empty(0, bool)

    def add(self, lines: Sequence[int], texts: Sequence[str], decimal: str) -> None:
        is_word, words = np.zeros(len(texts), bool), dict[str, int]()
        raw = numbers_or_nan(texts, decimal)
        if raw is None:
            raw = np.zeros(len(texts))
            for i, (line, text) in enumerate(zip(lines, texts, strict=True)):
                try:
                    if text not in words:
                        raw[i] = number_or_nan(line, self.name, text, decimal)
                        continue
                except InputError as error:
                    self.wrong = self.wrong or str(error)
                    words[text] = len(words)
                self.words += not LIKE_NUMBER.fullmatch(text)
                raw[i], is_word[i] = words[text], True
        raw += 0.0  # -0 is 0
        raw[is_word] = np.frombuffer(hashed(word.encode() for word in words), "<f8")[raw[is_word].astype(int)]
        self._chunks.append((raw, is_word))

    def end(self) -> None:
        """All cells were added."""
        self.raw, self.is_word = (np.concatenate(each) for each in zip(*self._chunks, strict=True))
        self._chunks.clear()

    @property
    def values(self) -> NDArray[np.float64]:
        """NaN where there is no number."""
        return np.where(self.is_word, np.nan, self.raw)

    def is_words(self, train: NDArray[np.int64]) -> bool:
        """Whether it is categorical. If nearly all cells are numbers, the others count as typing mistakes."""
        return bool(self.is_word[train].any()) and self.words > WORDS * (len(self.raw) - self.missing)

    @property
    def missing(self) -> int:
        return int((np.isnan(self.raw) & ~self.is_word).sum())


def _ids(columns: Sequence[NDArray[np.float64]]) -> NDArray[np.uint64]:
    """[N], of some rows at a time: all of them side by side would be a second copy of the table."""
    step = max(CELLS // len(columns), 1)
    parts = (np.stack([each[start : start + step] for each in columns], 1) for start in range(0, len(columns[0]), step))
    return np.concatenate([content_ids(torch.from_numpy(part)) for part in parts])


def _learned(
    path: Path, columns: tuple[str, ...], numbers: NDArray[np.float64], words: NDArray[np.object_]
) -> tuple[tuple[tuple[str, ...], ...], Normalization]:
    """The categories, and what is filled in and standardised, of a copy of the training part's rows, which is changed."""
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
        fill = np.array([np.median(column[~np.isnan(column)]) for column in numbers.T])
        np.copyto(numbers, fill, where=np.isnan(numbers))
        # a feature that never changes keeps its scale: its deviation is zero, or a rounding error, which is worse
        mean, std = numbers.mean(0), np.where(numbers.min(0) < numbers.max(0), numbers.std(0), 1.0)
    if words.shape[1]:
        imputer = SimpleImputer(missing_values=None, strategy="most_frequent").fit(blank)
        encoder = OneHotEncoder(sparse_output=False).fit(imputer.transform(blank))
        categories = tuple(tuple(map(str, known)) for known in encoder.categories_)
        usual = encoder.transform(imputer.statistics_[None])[0]
        fill, mean, std = (np.append(a, b) for a, b in ((fill, usual), (mean, 0 * usual), (std, 0 * usual + 1)))
    return categories, Normalization(tuple(mean.tolist()), tuple(std.tolist()), fill=tuple(fill.tolist()))


def _said(missing: dict[str, int], categories: dict[str, tuple[str, ...]], words: NDArray[np.object_]) -> Iterator[str]:
    """What was found in the columns."""
    if categories:
        yield "categorical: " + ", ".join(f"{name} ({len(known)} categories)" for name, known in categories.items())
    if some := [f"{name} ({n} cell{'s' * (n > 1)})" for name, n in missing.items() if n]:
        yield f"missing: {', '.join(some)}; the training part's median or most frequent category stands for them"
    for name, column in zip(categories, words.T, strict=True):
        different, rows = len(set(column)), len(column)
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


def _header(path: Path, label: str | None) -> tuple[list[str], int, list[str]]:
    """The names of the columns, from which place on they stand, and what was left out."""
    if not is_parquet(path):  # it has bounds of its own
        with suppress(OSError):  # who reads it says what is wrong
            check("table", size := path.stat().st_size, f"{path} has {size:,} bytes")
    header, _ = read_table(path)
    if not header:
        raise InputError(f"{path} is empty; it needs a header and rows")
    warnings, first = [], int(header[0] in INDEX and header[0] != label)
    if first:
        header = header[1:]
        warnings.append(f"{path}: the first column is an index and was left out; name it if it is a feature")
    if len(header) < 2:
        raise InputError(
            f"{path} has the single column {header[0]!r}; it needs features and a label, with commas between (or ; or tabs)"
        )
    check_names(path, header)
    if "" in header:
        raise InputError(f"{path}: column {header.index('') + 1} has no name; name it or remove it")
    return header, first, warnings


def _chunks(path: Path) -> Iterator[tuple[list[int], list[tuple[str, ...]]]]:
    """Some rows at a time: the numbers of their lines, and their cells by column."""
    header, rows = read_table(path)
    while some := list(islice(rows, max(CELLS // len(header), 1))):
        yield [line for line, _ in some], list(zip(*(row for _, row in some), strict=True))


def _words(path: Path, places: Sequence[int], rows: int) -> NDArray[np.object_]:
    """[N, columns]: the text of the categorical columns."""
    found, known, done = np.empty((rows, len(places)), object), dict[str, str](), 0
    for some, texts in _chunks(path) if places else ():
        for k, place in enumerate(places):
            found[done : done + len(some), k] = [known.setdefault(text, text) for text in texts[place]]
        done += len(some)
    return found


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
