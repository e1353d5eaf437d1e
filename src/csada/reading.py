"""The reader at the door: what a file or a flag says becomes a frozen dataclass, or one line that says why it cannot.

`build` takes plain values (of JSON, TOML or --set) to a type by its annotations, all the way down, so that nothing behind the
door checks a type again; what a value means (a range, names that must agree) is checked by the dataclass itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from csada import files
from csada.bounds import most
from csada.errors import InputError, explained

T = TypeVar("T")

WHOLE = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "nothing"}
LARGEST = 2**63  # whole numbers are of 64 bits everywhere behind the door
DOTTED = r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""  # a part of a key of TOML, and its dot
NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # halves of characters; the others stand for bytes of file names


# -- files -----------------------------------------------------------------------------------------


def read_text(path: str | os.PathLike[str]) -> str:
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{os.fspath(path)} is not text in UTF-8") from None


def read_bytes(path: str | os.PathLike[str], bound: str = "text") -> bytes:
    """A regular file within that bound: a pipe or a device would never end."""
    with explained(f"{os.fspath(path)} cannot be read"):
        return files.read_bytes(path, most(bound))


def sha256(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: str | os.PathLike[str], kind: type[T]) -> T:
    return typing.cast(T, build(kind, parse_json(read_text(path), str(path)), str(path)))


def parse_json(text: str, where: str) -> Any:
    """Plain JSON: no NaN, no infinite numbers, no nesting that exhausts the stack."""

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"{text} is no JSON number")
        return number

    try:
        found = json.loads(text, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is damaged: {_line(error)}") from None
    return shallow(found, where)


def shallow(value: T, where: str) -> T:
    """Refuses lists and tables in each other, level upon level, which would exhaust the stack of whoever walks them."""
    level: list[Any] = [[value]]
    for _ in range(most("levels") + 1):
        children = (each.values() if isinstance(each, dict) else each for each in level)
        if not (level := [each for some in children for each in some if isinstance(each, dict | list)]):
            return value
    raise _deep(where)


def _deep(where: str) -> InputError:
    limit = most("levels")
    return InputError(
        f"{where} has more than {limit} levels of lists and tables (csada --bound levels={10 * limit} allows more)"
    )


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    text = read_text(path)
    if re.search(DOTTED + f"{{{most('levels')}}}", text):  # tomllib's time has the square of them
        raise _deep(str(path))
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
        raise InputError(f"{path} is no TOML file: {_line(error)}") from None
    return shallow(found, str(path))


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    return files.write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


# -- values ----------------------------------------------------------------------------------------


def build(kind: Any, value: Any, where: str) -> Any:
    """`value` as a `kind`: a dataclass, a NamedTuple, a builtin, list, tuple, dict, NDArray, Literal, Enum or a union of these.

    Errors start with `where`, which ends in the key.
    """
    origin, arguments = _parts(kind)
    if kind is Any or kind is object:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is typing.Literal:
        return value if _among(value, arguments) else refuse(value, kind, where)
    if origin in (list, tuple, Sequence):
        return _sequence(kind, origin, arguments, value, where)
    if origin is np.ndarray:
        return _array(kind, arguments, value, where)
    if origin in (dict, Mapping):
        table = _table(value, kind, where)
        return {key: build(arguments[1], each, f"{where}.{key}") for key, each in table.items()}
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        values = fields_from(kind, _table(value, kind, where), where)
        if missing := [name for name, needed in _needed(kind).items() if needed and name not in values]:
            raise InputError(f"{where}: {missing[0]} is missing")
        try:
            return kind(**values)
        except ValueError as error:  # what a class itself says of its values, with the place before it
            raise InputError(f"{where}: {_line(error)}") from None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value) if _among(value, [each.value for each in kind]) else refuse(value, kind, where)
    return _scalar(kind, value, where)


def fields_from(kind: Any, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Each value as the field of its name asks for; an unknown name is refused, fields that are not given are left out.

    FORMER of the kind: {former name: name}, for files that were written before a field was renamed.
    """
    known, former = _hints(kind), getattr(kind, "FORMER", {})
    values = {former.get(key, key): value for key, value in values.items()}
    for key in values:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}; known keys: {', '.join(known)}")
    return {key: build(known[key], value, f"{where}: {key}") for key, value in values.items()}


def plain(value: Any) -> Any:
    """The value as JSON holds it; `build` gives it back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def refuse(value: Any, kind: Any, where: str) -> Any:
    try:
        shown = repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        shown = "a very large number"
    large = isinstance(value, int | float) and LARGEST <= abs(value) < math.inf and kind in (int, float)
    needed = describe(kind) + " of at most 64 bits" * large
    raise InputError(f"{where} is {shown if len(shown) <= 60 else shown[:57] + '...'}; {needed} is needed")


def describe(kind: Any) -> str:
    """A type in words."""
    origin, arguments = _parts(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(each) for each in arguments))
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin in (list, tuple, Sequence):
        return f"a list ({describe(arguments[0])} each)" if arguments else "a list"
    if origin is np.ndarray:
        return "a table of numbers"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(repr(each.value) for each in kind)
    return WHOLE.get(kind, "a table of names and values")


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) < LARGEST or (isinstance(value, float) and math.isfinite(value)):
            return float(value)
    elif kind is int and isinstance(value, float) and value.is_integer() and abs(value) < LARGEST:
        return int(value)  # 1e3 in JSON
    elif type(value) is kind and not (kind is int and abs(value) >= LARGEST):
        return refuse(value, kind, where) if kind is str and NO_TEXT.search(value) else value
    elif kind is str and isinstance(value, Path):
        return str(value)
    return refuse(value, kind, where)


def _one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """The first that fits; where none does, the error of the only one that is not None says more."""
    if value is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) == 1:
        return build(others[0], value, where) if value is not None else refuse(value, others[0], where)
    for kind in others:
        try:
            return build(kind, value, where)
        except InputError:
            continue
    return refuse(value, typing.Union[tuple(kinds)], where)  # noqa: UP007 - made at run time


def _sequence(kind: Any, origin: Any, arguments: Sequence[Any], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        return refuse(value, kind, where)
    fixed = origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis)
    if fixed and len(value) != len(arguments):
        raise InputError(f"{where} has {len(value)} values; {len(arguments)} are needed")
    kinds = arguments if fixed else [arguments[0]] * len(value)
    built = [build(each, one, f"{where}[{i}]") for i, (each, one) in enumerate(zip(kinds, value, strict=True))]
    return built if origin is list else tuple(built)


def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Origin and arguments of a type; of an alias, as NDArray is one since NumPy 2.5, those of what it stands for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    return _parts(origin.__value__[arguments]) if hasattr(origin, "__value__") else (origin, arguments)


def _array(kind: Any, arguments: Sequence[Any], value: Any, where: str) -> Any:
    """Lists of lists, all of one length, of such numbers."""
    wanted = np.dtype(typing.get_args(arguments[1])[0])
    known: set[type] = {"b": {bool}, "i": {int}, "f": {int, float}}[wanted.kind]  # type: ignore[assignment]
    found = np.array(value, dtype=object)  # what is no list of one length with the others is an element here
    if not isinstance(value, list) or not {type(each) for each in found.flat} <= known:
        return refuse(value, kind, where)
    try:
        return found.astype(wanted)
    except OverflowError:
        return refuse(value, kind, where)


def _table(value: Any, kind: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        refuse(value, kind, where)
    return typing.cast(Mapping[str, Any], value)


def _among(value: Any, known: Sequence[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in known)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # a user's method may import the names of its annotations for type checkers alone
        hints = {}
    names = [f.name for f in dataclasses.fields(kind) if f.init] if dataclasses.is_dataclass(kind) else kind._fields
    return {name: hints.get(name, Any) for name in names}


@cache
def _needed(kind: Any) -> dict[str, bool]:
    if not dataclasses.is_dataclass(kind):
        return {name: name not in kind._field_defaults for name in kind._fields}
    none = dataclasses.MISSING
    return {f.name: f.default is none and f.default_factory is none for f in dataclasses.fields(kind) if f.init}


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
