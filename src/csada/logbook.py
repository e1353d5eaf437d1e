"""The log of decisions: one JSON object per line, appended by any number of programs (docs/monitoring.md has the schema).

A batch is written under a lock and in one piece. When `write` returns, the operating system has it: a program that is killed
later loses nothing. One that is killed while it writes leaves half a line at most, and the next one starts a new line.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from json.encoder import encode_basestring_ascii as quoted
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from csada.errors import InputError, RunError, explained
from csada.files import StrPath, read_start, regular

Array = NDArray[Any]
Line = tuple[float, list[float], int, bool, tuple[int, int]]

TOGETHER = 10_000  # lines read at once
SKEW = 60.0  # seconds by which the clocks of several writers may differ
AHEAD = 3600.0  # seconds by which they may be ahead of this machine's
OFF = 2e-3  # by which a sum of probabilities may differ from one
LINE = re.compile(rb'\s*{[^\n]*"(time|input|id|model|probabilities)"')  # how a log begins
NEEDED = itemgetter("time", "model", "probabilities", "predicted", "expected_cost", "referred")
NUMBERS = {int, float}  # of JSON; true and false are none
LONGEST = 1 << 20  # characters of a line
PLACES = 12  # decimals of a probability
# texts of four bytes are copied as one number
FOUR = np.array([f"{i:04}" for i in range(10_000)], "S4").view(np.uint32)
WHOLE = np.array([", 0.", ", 1."], "S4").view(np.uint32)


class Log:
    """Open for appending; `with Log(...) as log`."""

    def __init__(self, path: StrPath, model: str, classes: Sequence[str]) -> None:
        """model: the fingerprint that every line carries."""
        self.path = Path(path)
        with explained(f"{path} cannot be written", "give another file for the log"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                regular(self.path)
                if not LINE.match(start := read_start(self.path)) and start.strip():
                    raise InputError(
                        f"{path} is there already and not a log of decisions; give another file for the log"
                    )
            self.file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        self.names = _padded([f'"predicted":{json.dumps(name)}' for name in classes])
        self.ends = _padded([f',"referred":{word}' for word in ("false", "true")])
        self.model = f',"model":{json.dumps(model)}}}\n'

    def write(self, decided: Sequence[Any], contents: Sequence[bytes], ids: Sequence[Any] | None = None) -> None:
        """decided: what `Classifier.decide` says of a batch. contents: to hash. Scores that are no numbers get no line.

        Lines are of one length and made side by side, with spaces where a text is shorter and PLACES decimals of a
        probability: to print each number as text of its own takes twice as long as all else.
        """
        chosen, _, costs, refer, probabilities = (np.asarray(each) for each in decided[:5])
        if not len(rows := np.flatnonzero(np.isfinite(costs))):
            return
        hashes = b"".join([sha256(contents[i]).digest() for i in rows.tolist()]).hex().encode()
        p = _decimals(probabilities[rows]).reshape(len(rows), -1)
        columns: list[Any] = [b'"input":"', np.frombuffer(hashes, np.uint8).reshape(-1, 64), b'","probabilities":[']
        columns += [p[:, 1:], b"],", self.names[chosen[rows]], b',"expected_cost":']
        spent = ("%-13.6g" * len(rows) % tuple(costs[rows].tolist())).encode()
        columns += [
            np.frombuffer(spent, np.uint8).reshape(-1, 13),
            self.ends[refer[rows].astype(int)],
            self.model.encode(),
        ]
        columns = [np.frombuffer(each, np.uint8) if isinstance(each, bytes) else each for each in columns]
        lines = np.empty((len(rows), sum(each.shape[-1] for each in columns)), np.uint8)
        np.concatenate([np.broadcast_to(each, (len(rows), each.shape[-1])) for each in columns], 1, out=lines)
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        start = f'{{"time":"{now}",'.encode()
        starts = [start + (b"" if ids is None else f'"id":{quoted(str(ids[i]))},'.encode()) for i in rows.tolist()]
        whole = lines.view(f"S{lines.shape[1]}").ravel().tolist()
        self.append(b"".join([part for both in zip(starts, whole, strict=True) for part in both]))

    def append(self, text: bytes) -> None:
        """Whole lines, after a line that a killed program left half written."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            with explained(f"{self.path} cannot be written", "decisions are not logged", RunError):
                end = os.fstat(self.file).st_size
                text = b"\n" * (end > 0 and os.pread(self.file, 1, end - 1) != b"\n") + text
                while text:
                    text = text[os.write(self.file, text) :]
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def _padded(texts: Sequence[str]) -> Array:
    """[n, longest] uint8."""
    found = [text.encode() for text in texts]
    longest = max(map(len, found))
    return np.frombuffer(b"".join(each.ljust(longest) for each in found), np.uint8).reshape(-1, longest)


def _decimals(values: Array) -> Array:
    """[..., 16] uint8: a comma, a space and a number from 0 to 1."""
    left = np.rint(np.clip(values, 0, 1) * 10.0**PLACES).astype(np.int64)
    found = np.empty((*left.shape, 4), np.uint32)
    for place in (3, 2, 1):
        high = left // 10_000
        found[..., place] = FOUR[left - high * 10_000]
        left = high
    found[..., 0] = WHOLE[left]
    return found.view(np.uint8)


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
    now: float = field(default_factory=time.time)
    seen: dict[int, int] = field(default_factory=dict)  # 64 bits of a line: in which run of one time it came first
    runs: int = 0
    told: str = ""  # the time of the last line
    alike: int = 0  # lines like one of the same run: a case twice in a batch, or a copy of the whole log

    def batches(self) -> Iterator[Decisions]:
        numbers = {name: i for i, name in enumerate(self.classes)}
        found: list[Line] = []
        with (
            explained(f"{self.path} cannot be read"),
            regular(self.path).open(encoding="utf-8", errors="replace") as file,  # a name that is no UTF-8 is unknown
        ):
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
        if found:
            yield self._batch(found)

    def _parsed(self, line: str, numbers: dict[str, int]) -> Line:
        try:
            values = json.loads(line)
            written, model, p, name, cost, referred = NEEDED(values)
            told = datetime.fromisoformat(written)
            moment = (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
            key = (key_of(values.get("input")), key_of(values.get("id"))) if self.keys else (0, 0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise _Skipped("not a line of the schema (half written or damaged)") from None
        if moment < 0:
            raise _Skipped("with a time before 1970")
        if moment > self.now + AHEAD:
            raise _Skipped("with a time more than an hour ahead of this machine's clock")
        if model != self.model:
            self.others[str(model)[:32]] += 1
            raise _Skipped("of another model")
        if not isinstance(name, str) or name not in numbers:
            raise _Skipped("of a class that the model does not have")
        if type(cost) not in NUMBERS or not 0 <= cost < math.inf:
            raise _Skipped("with an expected cost that is no number of zero or more")
        try:
            if not NUMBERS.issuperset(map(type, p)):
                raise TypeError
            if len(p) != len(numbers) or not (min(p) >= 0 and abs(sum(p) - 1) <= OFF):
                raise _Skipped("with probabilities that do not sum to one, or not one per class")
        except (TypeError, OverflowError):
            raise _Skipped("with probabilities that are no numbers") from None
        if not isinstance(referred, bool):
            raise _Skipped("that do not say whether the case was referred")
        self._count(line, written)
        # one line far ahead is one step back, not as many as there are lines after it
        back = moment < self.latest - SKEW
        self.backwards += back
        self.latest = moment if back else max(self.latest, moment)
        return moment, p, numbers[name], referred, key

    def _count(self, line: str, told: str) -> None:
        """Leaves out a copy of a line that came earlier; a case that was decided again has another time."""
        self.runs, self.told = self.runs + (told != self.told), told
        known = len(self.seen)
        first = self.seen.setdefault(hash(line), self.runs)
        if first != self.runs:
            raise _Skipped("copies of an earlier line")
        self.alike += len(self.seen) == known

    def _batch(self, found: list[Line]) -> Decisions:
        time, p, predicted, referred, keys = zip(*found, strict=True)
        decided = np.array(predicted, np.int64), np.array(referred, bool)
        kept = np.array(keys, np.int64)[:, : 2 * self.keys]
        return Decisions(np.array(time), np.array(p, np.float32), *decided, kept)


class _Skipped(Exception):
    """Why a line is left out."""
