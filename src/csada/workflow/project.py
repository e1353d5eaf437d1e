"""A project file: what the commands are to do when they are not told otherwise.

Keys at its top (data, costs, ...) hold for every command that has such a setting; a table holds for the command of its
name, and its keys are that command's arguments and flags. Paths are relative to the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from csada.costs import did_you_mean
from csada.errors import InputError
from csada.reading import parse_json, read_toml

SHARED = (
    "data",
    "data_dir",
    "costs",
    "scale",
    "seed",
    "size",
    "flip",
    "skip_bad",
    "device",
)  # what may stand at the top


class Setting(NamedTuple):
    """An argument or a flag of a command."""

    parameter: str  # its name in the program
    is_path: bool = False
    may_be_path: bool = False  # or a name, such as digits or pareto:0
    flag: str | None = None  # of one that may be repeated


Commands = Mapping[str, Mapping[str, Setting]]  # command -> key in its table -> setting
Settings = dict[Setting, Any]


def read(path: Path, commands: Commands) -> dict[str, Settings]:
    """The settings of each command, the shared ones first; what no command knows is refused."""
    tables = read_toml(path)
    shared = {key.replace("-", "_"): value for key, value in tables.items() if not isinstance(value, dict)}
    for key in shared:
        if key not in SHARED:
            raise InputError(
                f"{path}: unknown key {key!r} at the top; known: {', '.join(SHARED)}. "
                f"What belongs to one command stands in its table, such as [train]"
            )
    own = {name: value for name, value in tables.items() if isinstance(value, dict)}
    for name in own:
        if name not in commands:
            raise InputError(f"{path}: unknown table [{name}]{did_you_mean(name, commands)}")
    settings = {}
    for name, known in commands.items():
        table = {key.replace("-", "_"): value for key, value in own.get(name, {}).items()}
        for key in table:
            if key not in known:
                raise InputError(f"{path}: unknown key {key!r} in [{name}]; known: {', '.join(known)}")
        given = {key: value for key, value in shared.items() if key in known} | table
        settings[name] = {known[key]: _value(path, key, value, known[key]) for key, value in given.items()}
    return settings


def _value(path: Path, key: str, value: Any, setting: Setting) -> Any:
    if isinstance(value, dict) and setting.flag is not None:  # set = { weight = 2 } is --set weight=2
        return [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in value.items()]
    many = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float) for each in many):
        raise InputError(f"{path}: {key} is {value!r}; text, a number, true or false is needed")
    if setting.is_path or setting.may_be_path:
        many = [_located(path.parent, str(each), setting.may_be_path) for each in many]
    return many if isinstance(value, list) or setting.flag is not None else many[0]


def _located(folder: Path, text: str, may_be_name: bool) -> str:
    """Relative to the folder; but digits, pareto:0 and hub:OWNER/NAME are names, unless such a file is there."""
    joined = folder / Path(text).expanduser()
    looks_like_name = ":" in text or not ({".", "/", os.sep} & set(text) or Path(text).exists())
    if may_be_name and looks_like_name and not joined.exists():
        return text
    return f".{os.sep}{joined}" if may_be_name and joined.name == str(joined) else str(joined)  # pills may be a name


def parse_options(texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that reads as JSON (a number, true, null) is that, any other is text."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"--set {text!r} is not NAME=VALUE; for example --set weight=5")
        try:
            options[name] = parse_json(value, name)
        except InputError:
            options[name] = value
    return options


# -- a first project file --------------------------------------------------------------------------


class Choice(NamedTuple):
    """Settings to start with: those of train, those of fit, and for what they are meant."""

    train: dict[str, Any]  # model, epochs, and where they matter recipe and size
    fit: dict[str, Any]
    why: str


SEEN = 30_000  # training images that pass by on a CPU, all epochs together: some three minutes on two cores


def choose(samples: int, side: int | None, resizable: bool, *, gpu: bool) -> Choice:
    """By the number of training samples and the images' side, which is None for rows of numbers.

    On a CPU a ResNet gets 72 pixels: from 65 on it halves an image twice before its first block, and is many times as
    fast as with 64.
    """
    train: dict[str, Any]
    if side is None or (side <= 32 and not gpu):
        train = {"model": "mlp" if side is None else "cnn", "epochs": 60, "size": side}
        choice = Choice(train, {"epochs": 10}, "a small network, quick on a CPU")
    elif not gpu:
        train = {"model": "resnet9", "recipe": "pmi-fast", "epochs": min(max(SEEN // samples, 5), 150), "size": 72}
        choice = Choice(train, {"epochs": 5}, "a quick start on a CPU; on a GPU: resnet34, epochs = 60, size = 224")
    elif side <= 64:
        train = {"model": "resnet34", "recipe": "fast", "epochs": 60, "size": side}
        choice = Choice(train, {"epochs": 10}, "small images, on a GPU")
    else:
        train = {"model": "resnet34", "recipe": "pmi-fast", "epochs": 60, "size": min(side, 224)}
        choice = Choice(train, {"epochs": 10}, "photographs, on a GPU")
    if not resizable:
        del train["size"]
    return choice


def _toml(value: int | str) -> str:
    return json.dumps(value, ensure_ascii=False)  # both write numbers and text alike


def template(data: str, costs: str, counts: Mapping[str, Mapping[str, int]], choice: Choice) -> str:
    """The text of a project file."""
    train, validation, test = (f"{sum(counts[part].values()):,}" for part in ("train", "validation", "test"))
    own = ["\n".join(f"{key} = {_toml(value)}" for key, value in table.items()) for table in choice[:2]]
    return f"""\
# A csada project. Commands started in this folder take from this file what they are not told; from elsewhere, write
# csada --project FILE COMMAND. What is given on the command line comes first. Paths are relative to this file.
# A table such as [train] may hold any argument or flag of that command: csada train --help lists them.

data = {_toml(data)}
# {len(counts["train"])} classes; {train} training, {validation} validation and {test} test samples
costs = {_toml(costs)}  # what each mistake costs

[train]  # a model that makes as few mistakes as it can, whatever they cost
out = "baseline"
# {choice.why}
{own[0]}

[fit]  # the same model, made to avoid the expensive mistakes
model = "baseline"
out = "model"
{own[1]}
budget = 0.5  # points of accuracy that deciding by cost may lose

[evaluate]
model = "model"

[tune]  # not needed; looks for better settings than those of [fit]
model = "baseline"
out = "tuned"

[report]
folder = "model"
out = "report.html"

[export]
model = "model"
out = "model.onnx"

[predict]
model = "model"
"""
