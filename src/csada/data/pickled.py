"""A pickle read as data: nothing that it names is looked up, called or built.

A pickle is a program for a small machine with a stack and a memo. The reader follows the instructions that make numbers,
strings and containers. A name stays a name, a call stays a name with its arguments, and a state stays beside the thing it is
for: whoever reads the file compares them with what they should be. Memory is bounded by the size of the file and some 100 bytes
for each of half a million instructions. No structure is followed into its depth.
"""

from __future__ import annotations

import codecs
import io
import pickletools
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from csada.errors import InputError

LONGEST = 500_000  # instructions; a batch of CIFAR-10 has at most 121,000
CODES: dict[str, Any] = pickletools.code2op  # type: ignore[attr-defined]
VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
VALUES |= {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# values; None: all since the last mark
TAKES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
TAKES |= {"EMPTY_LIST": 0, "LIST": None, "APPEND": 1, "APPENDS": None}
TAKES |= {"EMPTY_DICT": 0, "DICT": None, "SETITEM": 2, "SETITEMS": None}


@dataclass(frozen=True, eq=False)
class Name:
    text: str  # module and name, with a space between


@dataclass(frozen=True, eq=False)
class Call:
    function: Any
    arguments: Any


@dataclass(frozen=True, eq=False)
class Built:
    thing: Any
    state: Any  # that the thing was to be given


def read(raw: bytes, names: Container[str]) -> Any:
    """What the pickle holds. One that asks for other names is refused; a damaged one raises almost anything."""
    file, spare = io.BytesIO(raw), len(raw)
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    given: Any

    def popped(count: int | None = None) -> list[Any]:
        """The last `count` values, or those since the last mark."""
        start = marks.pop() if count is None else len(stack) - count
        if start < 0:
            raise ValueError("values are missing")
        found = stack[start:]
        del stack[start:]
        return found

    for _ in range(LONGEST):
        instruction = CODES[file.read(1).decode("latin1")]
        name, given = instruction.name, None
        if name == "STRING":  # its own reader takes ASCII alone
            given = pickletools.read_stringnl(file, decode=False)
        elif instruction.arg is not None:
            given = instruction.arg.reader(file)
        if name in VALUES:
            stack.append(given)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in TAKES:
            values = popped(TAKES[name])
            if "TUPLE" in name:
                stack.append(tuple(values))
            elif "LIST" in name:
                stack.append(values)
            elif "DICT" in name:
                stack.append(_dict(values))
            elif "APPEND" in name:
                stack[-1].extend(values)
            else:
                stack[-1].update(_dict(values))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            memo[len(memo) if given is None else given] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[given])
        elif name in ("BINSTRING", "SHORT_BINSTRING"):
            stack.append(given.encode("latin1"))
        elif name == "STRING":
            stack.append(codecs.escape_decode(given)[0])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            text = given or " ".join(popped(2))
            if text not in names:
                raise InputError(f"asks for {text[:80]!r}, which is no part of CIFAR-10; it was not read")
            stack.append(Name(text))
        elif name == "REDUCE":
            match called := Call(*popped(2)):
                case Call(Name("_codecs encode"), (str(text), "latin1")):  # how protocols 0 to 2 write bytes
                    spare -= len(text)
                    if spare < 0:
                        raise ValueError("the same text is used again and again")
                    stack.append(text.encode("latin1"))
                case _:
                    stack.append(called)
        elif name == "BUILD":
            stack.append(Built(*popped(2)))
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"the instruction {name}")
    raise ValueError(f"more than {LONGEST:,} instructions")


def _dict(values: list[Any]) -> dict[Any, Any]:
    if not all(type(key) in (bytes, str) for key in values[::2]):  # to hash anything else would follow it
        raise ValueError("a key that is no text")
    return dict(zip(values[::2], values[1::2], strict=True))
