"""The log of decisions: one JSON object per line, appended by any number of programs (docs/monitoring.md has the schema).

A batch is written under a lock and in one piece. When `write` returns, the operating system has it: a program that is killed
later loses nothing. One that is killed while it writes leaves half a line at most, and the next one starts a new line.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from csada.errors import InputError, RunError
from csada.files import StrPath, read_start, regular

Array = NDArray[Any]
Line = tuple[float, list[float], int, bool, tuple[int, int]]

TOGETHER = 10_000  # lines read at once
SKEW = 60.0  # seconds by which the clocks of several writers may differ
YEARS = datetime(1970, 1, 1, tzinfo=UTC).timestamp(), datetime(2200, 1, 1, tzinfo=UTC).timestamp()
OFF = 2e-3  # by which a sum of probabilities may differ from one
LINE = re.compile(rb'\s*{[^\n]*"(time|input|id|model|probabilities)"')  # how a log begins
LONGEST = 1 << 20  # characters of a line


class Log:
    """Open for appending; `with Log(...) as log`."""

    def __init__(self, path: StrPath, model: str, classes: Sequence[str]) -> None:
        """model: the fingerprint that every line carries."""
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                regular(self.path)
                if not LINE.match(start := read_start(self.path)) and start.strip():
                    raise InputError(
                        f"{path} is there already and not a log of decisions; give another file for the log"
                    )
            self.file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; give another file for the log") from None
        self.names = np.array([f'"predicted":{json.dumps(name)},"expected_cost":' for name in classes], object)
        self.ends = np.array(
            [f',"referred":{word},"model":{json.dumps(model)}}}\n' for word in ("false", "true")], object
        )
        self.row = f'"input":"%s","probabilities":[{",".join(["%.6g"] * len(classes))}],%s%.6g%s'

    def write(self, decided: Sequence[Any], contents: Sequence[bytes], ids: Sequence[Any] | None = None) -> None:
        """decided: what `Classifier.decide` says of a batch. contents: to hash. Scores that are no numbers get no line."""
        chosen, _, costs, refer, probabilities = (np.asarray(each) for each in decided[:5])
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        start = f'{{"time":"{time}",' + '"id":%s,' * (ids is not None)
        rows = np.flatnonzero(np.isfinite(costs)).tolist()
        columns: list[Any] = [] if ids is None else [[quoted(str(ids[i])) for i in rows]]
        columns += [[sha256(contents[i]).hexdigest() for i in rows], *probabilities[rows].T]
        columns += [self.names[chosen[rows]], costs[rows], self.ends[refer[rows].astype(int)]]
        values = np.empty(
            (len(rows), len(columns)), object
        )  # all are written at once: a row's own call would cost as much again
        for i, column in enumerate(columns):
            values[:, i] = column
        self.append(((start + self.row) * len(rows) % tuple(values.ravel().tolist())).encode())

    def append(self, text: bytes) -> None:
        """Whole lines, after a line that a killed program left half written."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            end = os.fstat(self.file).st_size
            text = b"\n" * (end > 0 and os.pread(self.file, 1, end - 1) != b"\n") + text
            while text:
                text = text[os.write(self.file, text) :]
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}; decisions are not logged") from None
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


class Decisions(NamedTuple):
    """Lines of one model's log, in the order of the file."""

    time: Array  # [n] float64: seconds since 1970
    probabilities: Array  # [n, K] float32
    predicted: Array  # [n]: the number of a class, also where a person decided
    referred: Array  # [n] bool: whether one did
    keys: Array  # [n, 2]: `key_of` input and id, or [n, 0] where nobody asks for them

    def __len__(self) -> int:
        return len(self.time)

    def part(self, which: Any) -> Decisions:
        """By a slice, or by [n] bool."""
        return Decisions(*(each[which] for each in self))

    @classmethod
    def none(cls) -> Decisions:
        no, none = np.empty(0), np.empty((0, 0), np.float32)
        return cls(no, none, no.astype(np.int64), no.astype(bool), none.astype(np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def key_of(name: Any) -> int:
    """64 bits in place of a name, whose text would take ten times the memory; 0 where there is none."""
    return 0 if name is None else hash(str(name))


@dataclass
class Reading:
    """Reads a log once, in batches, and counts what it leaves out and why."""

    path: Path
    model: str
    classes: Sequence[str]
    keys: bool = False  # whether inputs and ids are kept
    lines: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)  # fingerprints of other models
    backwards: int = 0  # how often the time goes back by more than SKEW
    latest: float = 0.0  # since then

    def batches(self) -> Iterator[Decisions]:
        numbers = {name: i for i, name in enumerate(self.classes)}
        found: list[Line] = []
        try:
            with regular(self.path).open(
                encoding="utf-8", errors="replace"
            ) as file:  # a name that is no UTF-8 is unknown
                while line := file.readline(LONGEST):
                    if len(line) == LONGEST and not line.endswith("\n"):
                        raise InputError(f"{self.path} has a line of more than {LONGEST:,} letters; is it a log?")
                    if line.isspace():
                        continue
                    self.lines += 1
                    try:
                        found.append(self._parsed(line, numbers))
                    except _Skipped as why:
                        self.skipped[str(why)] += 1
                        continue
                    if len(found) == TOGETHER:
                        yield self._batch(found)
                        found = []
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None
        if found:
            yield self._batch(found)

    def _parsed(self, line: str, numbers: dict[str, int]) -> Line:
        try:
            values = json.loads(line)
            model, p, name, referred = (values[key] for key in ("model", "probabilities", "predicted", "referred"))
            told = datetime.fromisoformat(values["time"])
            moment = (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
            key = (key_of(values.get("input")), key_of(values.get("id"))) if self.keys else (0, 0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise _Skipped("not a line of the schema (half written or damaged)") from None
        if not YEARS[0] <= moment < YEARS[1]:
            raise _Skipped("with a time that cannot be (before 1970 or after 2199)")
        if model != self.model:
            self.others[str(model)[:32]] += 1
            raise _Skipped("of another model")
        if not isinstance(name, str) or name not in numbers:
            raise _Skipped("of a class that the model does not have")
        try:
            if len(p) != len(numbers) or not (min(p) >= 0 and abs(sum(p) - 1) <= OFF):
                raise _Skipped("with probabilities that do not sum to one, or not one per class")
        except (TypeError, OverflowError):
            raise _Skipped("with probabilities that are no numbers") from None
        if not isinstance(referred, bool):
            raise _Skipped("that do not say whether the case was referred")
        back = (
            moment < self.latest - SKEW
        )  # one line far ahead is one step back, not as many as there are lines after it
        self.backwards += back
        self.latest = moment if back else max(self.latest, moment)
        return moment, p, numbers[name], referred, key

    def _batch(self, found: list[Line]) -> Decisions:
        time, p, predicted, referred, keys = zip(*found, strict=True)
        decided = np.array(predicted, np.int64), np.array(referred, bool)
        kept = np.array(keys, np.int64)[:, : 2 * self.keys]
        return Decisions(np.array(time), np.array(p, np.float32), *decided, kept)


class _Skipped(Exception):
    """Why a line is left out."""
