"""What each mistake costs: c(y, z) is paid when the truth is y and the prediction is z.

Rows are the truth, columns the prediction; a correct prediction costs nothing. The weights with which CSADA attacks the
pairs are c~(y, z) = c(y, z)^tau / sum c^tau, computed on c / max c so that no tau overflows.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from csada.bounds import check
from csada.errors import InputError, explained
from csada.files import StrPath, whole
from csada.reading import read_text
from csada.rows import as_written, cell

Pair = tuple[int, int]
ClassLike = int | str

COMPARED = 10_000  # pairs of names: more take too long
LIST = ["truth", "predicted", "cost"]  # the header of a list of costs
REFERRED = "(refer)"  # stands where a class would: what leaving a case to a person costs


class CostMatrix:
    """A square table of costs, checked once on the way in and never changed afterwards.

    referral_cost: what it costs to leave a case to a person, in the same unit; None: not known.

    >>> costs = CostMatrix.from_pairs(["trazodone", "glipizide"], {("trazodone", "glipizide"): 10})
    >>> costs["trazodone", "glipizide"], costs["glipizide", "trazodone"]
    (10.0, 1.0)
    """

    values: NDArray[np.float64]
    classes: tuple[str, ...]
    referral_cost: float | None

    def __init__(
        self, values: ArrayLike, classes: Iterable[ClassLike] | None = None, referral_cost: float | None = None
    ) -> None:
        try:
            table = np.array(values, dtype=np.float64) + 0.0  # -0.0 becomes 0.0: equal tables have equal bytes
        except (TypeError, ValueError) as error:
            raise InputError(f"costs must be a square table of numbers: {error}") from None
        if table.ndim != 2 or table.shape[0] != table.shape[1]:
            raise InputError(f"costs must be square (one row and one column per class), got shape {table.shape}")
        if len(table) < 2:
            raise InputError(f"costs need at least two classes, got {len(table)}")
        names = tuple(str(k) for k in range(len(table))) if classes is None else tuple(map(str, classes))
        if len(names) != len(table):
            raise InputError(f"{len(names)} class names for a {len(table)} x {len(table)} cost table; give one per row")
        if (repeated := _repeated(names)) is not None:
            raise InputError(f"class name {repeated!r} appears twice; every class needs its own name")

        def refuse(bad: NDArray[np.bool_], why: str) -> None:
            if bad.any():
                y, z = map(int, np.argwhere(bad)[0])
                raise InputError(f"cost of calling {names[y]!r} {names[z]!r} is {table[y, z]:g}; {why}")

        refuse(~np.isfinite(table), "costs must be finite numbers")
        refuse(table < 0, "costs must be zero or more")
        refuse(np.diag(np.diag(table)) != 0, "a correct prediction must cost 0 (the diagonal)")
        if referral_cost is not None:
            if not 0 <= referral_cost < np.inf:
                raise InputError(
                    f"referral_cost is {referral_cost:g}; give what leaving a case to a person costs, zero or more"
                )
            if REFERRED in names:
                raise InputError(f"a class is named {REFERRED}, which stands for leaving a case to a person; rename it")
        table.flags.writeable = False
        self.values, self.classes = table, names
        self.referral_cost = None if referral_cost is None else float(referral_cost) + 0.0
        self._hash = hash((names, table.tobytes(), self.referral_cost))

    @classmethod
    def from_pairs(
        cls,
        classes: Sequence[ClassLike],
        pairs: Mapping[tuple[ClassLike, ClassLike], float],
        default: float = 1.0,
        referral_cost: float | None = None,
    ) -> CostMatrix:
        """`pairs` maps (truth, predicted) to its cost; every other mistake costs `default`.

        A string is a class's name, an integer its position from 0, as in costs[y, z]. Where another class has that
        integer as its name, as with the classes 1, 2, 3, it is refused: names are then written as strings.
        """
        matrix = cls(_off_diagonal(len(tuple(classes)), default), classes)
        values = matrix.values.copy()
        for (truth, predicted), cost in pairs.items():
            for k in (truth, predicted):
                if not isinstance(k, str) and str(k) in matrix.classes and matrix.classes[k : k + 1] != (str(k),):
                    raise InputError(
                        f"class {k} in a pair is the name of another class than number {k}; write names as strings, '{k}'"
                    )
            y, z = matrix.index(truth), matrix.index(predicted)
            if y == z:
                raise InputError(f"pair ({truth!r}, {predicted!r}) is no mistake and must cost 0; leave it out")
            values[y, z] = cost
        return cls(values, classes, referral_cost)

    @classmethod
    def uniform(cls, n: int, cost: float = 1.0) -> CostMatrix:
        """Every mistake costs the same: the mean cost is then the error rate."""
        return cls(_off_diagonal(n, cost))

    @classmethod
    def single_pair(cls, n: int, y: int, z: int, cost: float = 1.0) -> CostMatrix:
        """Only the prediction z for truth y costs anything (the 90 experiments of section 5.1)."""
        return cls.from_pairs([str(k) for k in range(n)], {(y, z): cost}, default=0.0)

    @classmethod
    def pareto(
        cls, n: int, shape: float = 1.5, scale: float = 1.0, seed: int = 0, *, lomax: bool = False
    ) -> CostMatrix:
        """Independent Pareto costs, all >= scale; `lomax=True` shifts them to start at zero (NumPy's `pareto`)."""
        if not (shape > 0 and scale > 0):
            raise InputError(f"Pareto shape and scale must be positive, got shape {shape} and scale {scale}")
        draws = np.random.default_rng(seed).pareto(shape, (n, n)) + (0.0 if lomax else 1.0)
        return cls(scale * draws * _off_diagonal(n, 1.0))

    @classmethod
    def from_csv(cls, path: StrPath, classes: Sequence[str] | None = None) -> CostMatrix:
        """A table or a list by class name; the header tells which. # starts a comment, semicolons separate as well.

        A table names the predicted classes in its header and the true ones in its first column. A list has the header
        truth,predicted,cost and one line per mistake: `*` stands for every class, the more exact line wins, a correct
        prediction costs 0, and extra columns are ignored. What it costs to leave a case to a person is the line
        `*,(refer),0.5` of a list, or a last row `(refer),0.5` of a table. classes: their order; a file that names others, or
        lacks one, is refused, but the line `*,*,1` of a list is for all of them.
        """
        path = Path(path)
        rows = _read_rows(path)
        if len(rows) < 2:
            raise InputError(
                f"{path} holds no cost table; write a row of the predicted classes, then one row per class"
            )
        is_list = [cell.casefold() for cell in rows[0].cells[:3]] == LIST
        costs = cls(*(_from_list(path, rows, classes or ()) if is_list else _from_table(path, rows)))
        if classes is None:
            return costs
        strange = [str(row.line) for row in rows[1:] if {*row.cells[: 1 + is_list]} - {*classes, "*", REFERRED}]
        lines = f", line{'s' * (len(strange) > 1)} {some}," if (some := ", ".join(strange[:10])) else ""
        return costs.ordered(classes, f"{path}{lines}")

    @classmethod
    def preset(cls, name: str) -> CostMatrix:
        """A table that comes with csada: "pmi", a pharmacist's costs for the twenty pills of the paper's section 5.3."""
        presets = {path.stem: path for path in sorted((Path(__file__).parent / "presets").glob("*.csv"))}
        if name not in presets:
            raise InputError(f"no preset {name!r}{did_you_mean(name, presets)}")
        return cls.from_csv(presets[name])

    def to_csv(self, path: StrPath, *, as_list: bool = False, comment: str = "") -> None:
        """Written under a temporary name and renamed, so that the file is never half written.

        as_list: instead of a square table, one line for every mistake whose cost differs from the usual one.
        """
        path = Path(path)
        rows = list(self._list() if as_list else self._table())
        with (
            explained(f"cannot write the costs to {path}", "choose another place"),
            whole(path) as partial,
            partial.open("w", newline="", encoding="utf-8") as file,
        ):
            file.writelines(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
            csv.writer(file, lineterminator="\n").writerows(rows)

    def _table(self) -> Iterator[list[str]]:
        yield ["truth \\ predicted", *map(cell, self.classes)]
        for name, row in zip(self.classes, self.values, strict=True):
            yield [_first(name), *map(_text, row)]
        if self.referral_cost is not None:
            yield [REFERRED, _text(self.referral_cost)]

    def _list(self) -> Iterator[list[str]]:
        for name, meaning in (("*", "every class"), (REFERRED, "leaving a case to a person")):
            if name in self.classes:
                raise InputError(
                    f"a list of costs cannot hold a class named {name!r}, which means {meaning}; write a table"
                )
        yield [*LIST, "why"]
        yield ["*", "*", _text(self.usual), "every mistake that is not listed"]
        if self.referral_cost is not None:
            yield ["*", REFERRED, _text(self.referral_cost), "leaving a case to a person"]
        yield from ([_first(name), cell(name), "0", "right"] for name in self.classes)
        for y, z in np.argwhere((self.values != self.usual) & ~np.eye(len(self), dtype=bool)):
            yield [_first(self.classes[y]), cell(self.classes[z]), _text(self.values[y, z]), ""]

    def index(self, name: ClassLike) -> int:
        """The number of a class, given its name or its number."""
        if isinstance(name, str):
            if name not in self.classes:
                raise InputError(f"unknown class {name!r}{did_you_mean(name, self.classes)}")
            return self.classes.index(name)
        if not 0 <= name < len(self):
            raise InputError(f"class {name} does not exist; classes are 0 to {len(self) - 1}")
        return int(name)

    def __getitem__(self, pair: tuple[ClassLike, ClassLike]) -> float:
        return float(self.values[self.index(pair[0]), self.index(pair[1])])

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CostMatrix):
            return NotImplemented
        same = self.classes == other.classes and self.referral_cost == other.referral_cost
        return same and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[CostMatrix], tuple[NDArray[np.float64], tuple[str, ...], float | None]]:
        """Built anew when unpickled: hashes of strings differ between processes, and NumPy forgets what is read-only."""
        return CostMatrix, (self.values, self.classes, self.referral_cost)

    @property
    def mistakes(self) -> NDArray[np.float64]:
        """[K * (K - 1)]: what each mistake costs."""
        return self.values[~np.eye(len(self), dtype=bool)]

    @property
    def usual(self) -> float:
        """The most frequent cost of a mistake; of equally frequent ones the smallest."""
        found, counts = np.unique(self.mistakes, return_counts=True)
        return float(found[counts.argmax()])

    def weights(self, tau: float = 1.0) -> NDArray[np.float64]:
        """c~ of the paper: sums to 1 over all pairs, or is all zero when no cost is positive."""
        if not (np.isfinite(tau) and tau > 0):
            raise InputError(f"tau must be a positive number, got {tau}")
        largest = self.values.max()
        if largest == 0:
            return np.zeros_like(self.values)
        powers = (self.values / largest) ** tau  # at most 1, so nothing overflows and the sum is at least 1
        return np.asarray(powers / powers.sum())

    def top_pairs(self, k: int = 3, *, by: str = "cost") -> list[Pair]:
        """The k most expensive pairs; `by="asymmetry"` ranks by c(y, z) - c(z, y). Ties: by class number."""
        keys = {"cost": self.values, "asymmetry": self.values - self.values.T}
        if by not in keys:
            raise InputError(f"cannot rank pairs by {by!r}; known: {', '.join(keys)}")
        key = keys[by].astype(np.float64, copy=True)
        np.fill_diagonal(key, -np.inf)
        n = len(self)
        order = np.argsort(-key, axis=None, kind="stable")[: min(k, n * (n - 1))]
        return [(int(i // n), int(i % n)) for i in order]

    def critical_pairs(self, k: int = 3) -> list[Pair]:
        """The k most expensive pairs, as far as they cost more than the cheapest: with equal costs there is none."""
        return [pair for pair in self.top_pairs(k) if self.values[pair] > self.mistakes.min()]

    def ordered(self, classes: Sequence[str], source: str = "the cost matrix") -> CostMatrix:
        """The same costs with the classes in this order; other classes are refused."""
        if changes := name_changes(self.classes, classes):
            raise InputError(f"{source} names other classes than the data: {changes}")
        order = [self.index(str(name)) for name in classes]
        return CostMatrix(self.values[np.ix_(order, order)], classes, self.referral_cost)

    def __str__(self) -> str:
        cells = [["truth \\ predicted", *self.classes]]
        for y, name in enumerate(self.classes):
            cells.append([name, *("." if y == z else f"{cost:g}" for z, cost in enumerate(self.values[y]))])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)

    def __repr__(self) -> str:
        referral = "" if self.referral_cost is None else f", a referral costs {self.referral_cost:g}"
        if len(self) <= 12:
            return f"CostMatrix(rows: truth, columns: prediction{referral})\n{self}"
        return f"CostMatrix({len(self)} classes, costs {self.values.min():g} to {self.values.max():g}{referral})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, or all of them."""
    known = list(known)
    if near := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}"


def name_changes(given: Sequence[str], known: Sequence[str]) -> str:
    """What would make the given names (classes, columns) the known ones, in one line; nothing where they agree."""
    missing, unknown = ([name for name in a if name not in b] for a, b in ((known, set(given)), (given, set(known))))
    changes = []
    for name in list(unknown) if len(unknown) * len(missing) <= COMPARED else ():
        if near := difflib.get_close_matches(name, missing, n=1):
            changes.append(f"rename {name!r} to {near[0]!r}")
            unknown.remove(name)
            missing.remove(near[0])
    for verb, names in (("take out", unknown), ("add", missing)):
        if names:
            changes.append(f"{verb} {', '.join(map(repr, names[:10]))}" + ", ..." * (len(names) > 10))
    return "; ".join(changes)


class _Row(NamedTuple):
    line: int
    cells: list[str]
    decimal: str  # what separates the decimals of its numbers: a point, or also a comma


def _read_rows(path: Path) -> list[_Row]:
    """The lines that are neither empty nor comments. Spreadsheets of some countries write 1,5;2 where others 1.5,2."""
    text = read_text(path)
    try:
        lines = (line for line in text.splitlines() if line.strip(" ,;\t") and not line.lstrip('"').startswith("#"))
        found = re.search("[,;\t]", next(lines, ""))  # the header's first one
        separator = found[0] if found else ","
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row)) and row[0][:1] != "#"]
    except csv.Error as error:
        raise InputError(f"cannot read the cost table {path}: {error}") from None
    decimal = "." if separator == "," else ","
    return [_Row(line, _cells(row), decimal) for line, row in rows]


def _cells(row: list[str]) -> list[str]:
    """Without the empty ones at the end, with which spreadsheets make all rows as long as the longest comment."""
    cells = [as_written(text.strip()) for text in row]
    while not cells[-1]:
        cells.pop()
    return cells


def _from_table(path: Path, rows: list[_Row]) -> tuple[NDArray[np.float64], list[str], float | None]:
    columns, price = rows[0].cells[1:], None
    if REFERRED not in columns:
        priced = [row for row in rows[1:] if row.cells[0] == REFERRED]
        rows = [row for row in rows if row not in priced]
        if len(priced) > 1 or any(len(row.cells) != 2 for row in priced):
            raise InputError(f"{path}, line {priced[-1].line}: write what a referral costs once, as {REFERRED},0.5")
        price = _number(path, priced[0], 1, "*", REFERRED) if priced else None
    names = [row.cells[0] for row in rows[1:]]
    check("classes", max(len(names), len(columns)), f"{path} names {max(len(names), len(columns)):,} classes")
    for where, given in (("header", columns), ("first column", names)):
        if "" in given:
            raise InputError(f"{path}: the {where} lacks a name at position {given.index('') + 1}; name every class")
        if (name := _repeated(given)) is not None:
            raise InputError(f"{path}: the {where} has {name!r} twice; every class needs its own name")
    if odd := set(names) ^ set(columns):
        name = next(name for name in [*names, *columns] if name in odd)
        missing, hint = ("header", columns) if name in names else ("first column", names)
        raise InputError(f"{path}: class {name!r} is missing from the {missing}{did_you_mean(name, hint)}")
    place = {name: column for column, name in enumerate(columns)}
    order = [place[name] for name in names]  # columns may come in another order: names decide
    values = np.zeros((len(names), len(names)))
    for y, row in enumerate(rows[1:]):
        if len(row.cells) != len(rows[0].cells):
            raise InputError(
                f"{path}, line {row.line}: row {names[y]!r} has {len(row.cells) - 1} costs, {len(columns)} are needed"
            )
        for z, column in enumerate(order):
            values[y, z] = _number(path, row, 1 + column, names[y], names[z])
    return values, names, price


def _from_list(
    path: Path, rows: list[_Row], classes: Sequence[str]
) -> tuple[NDArray[np.float64], list[str], float | None]:
    costs: dict[tuple[str, str], float] = {}
    for row in rows[1:]:
        truth, predicted = [*row.cells, ""][:2]
        if not (truth and predicted) or len(row.cells) < 3:
            raise InputError(f"{path}, line {row.line}: a cell is missing; write truth,predicted,cost")
        if (truth, predicted) in costs:
            raise InputError(f"{path}, line {row.line}: calling {truth!r} {predicted!r} stands above already; keep one")
        if REFERRED in (truth, predicted) and truth != "*":
            raise InputError(
                f"{path}, line {row.line}: a referral costs the same whatever the truth; write *,{REFERRED},0.5"
            )
        cost = costs[truth, predicted] = _number(path, row, 2, truth, predicted)
        if truth == predicted != "*" and cost != 0:
            raise InputError(f"{path}, line {row.line}: calling {truth!r} what it is must cost 0, not {cost:g}")
    price = costs.pop(("*", REFERRED), None)
    names = list(dict.fromkeys(name for pair in costs for name in pair if name != "*"))
    if ("*", "*") in costs:  # for all other classes, but that of which a name is a misspelling
        named = set(names)
        others, unknown = [name for name in classes if name not in named], named.difference(classes)
        if len(others) * len(unknown) > COMPARED:
            unknown = set()
        meant = {near for name in unknown for near in difflib.get_close_matches(name, others, n=1)}
        names += [name for name in others if name not in meant]
    check("classes", len(names), f"{path} names {len(names):,} classes")
    values, place = np.full((len(names), len(names)), np.nan), {name: k for k, name in enumerate(names)}
    for pair in sorted(costs, key=lambda pair: -pair.count("*")):  # the more exact line has the last word
        y, z = (slice(None) if name == "*" else place[name] for name in pair)
        values[y, z] = costs[pair]
    np.fill_diagonal(values, 0)
    if len(missing := np.argwhere(np.isnan(values))):
        y, z = missing[0]
        unsaid = f"{path} does not say what calling {names[y]!r} {names[z]!r} costs"
        raise InputError(f"{unsaid}; add a line *,*,1 for every mistake that is not listed")
    return values, names, price


def _number(path: Path, row: _Row, column: int, truth: str, predicted: str) -> float:
    text = row.cells[column]
    if row.decimal == "," and re.fullmatch(r"[1-9]\d{0,2}[.,]\d{3}", text):
        raise InputError(
            f"{path}, line {row.line}, column {column + 1}: {text!r} may be thousands or decimals; write 1000 or 1,0"
        )
    try:
        return float("" if "_" in text else text.replace(row.decimal, "."))  # Python reads 1_0 as 10
    except ValueError:
        what = "a referral" if (truth, predicted) == ("*", REFERRED) else f"calling {truth!r} {predicted!r}"
        raise InputError(f"{path}, line {row.line}: cost of {what} is {text!r}, no number") from None


def _text(cost: float) -> str:
    return repr(float(cost)).removesuffix(".0")


def _first(name: str) -> str:
    """A name in the first column: the space keeps #1 from being a comment."""
    return f" {name}" if name.startswith("#") else cell(name)


def _repeated(names: Sequence[str]) -> str | None:
    """The first that was there before."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _off_diagonal(n: int, cost: float) -> NDArray[np.float64]:
    return np.where(np.eye(n, dtype=bool), 0.0, float(cost))
