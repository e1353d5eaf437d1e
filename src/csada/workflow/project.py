"""A project file: settings of the commands that are not given on the command line.

Keys at its top (data, costs, ...) hold for every command that has such a setting; a table holds for the command of its
name, and its keys are that command's arguments and flags; compare trains its baselines as [train] says. Paths are relative
to the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from csada.classifier import deployed
from csada.costs import did_you_mean
from csada.data import BUILTIN, IMAGES, Splits, find
from csada.data.images import shorter_side
from csada.errors import InputError
from csada.evidence import Evidence, Training
from csada.reading import build, parse_json, plain, read_toml
from csada.workflow.settings import costs_for

# These may stand at the top.
SHARED = (
    *("data", "data_dir", "costs", "scale", "seed", "size", "flip"),
    *("skip_bad", "cache_gb", "label", "ignore", "device", "limits"),
)

# of [train]
BORROWED = {"compare": {key: key for key in ("model", "size", "recipe", "pretrained")} | {"epochs": "baseline_epochs"}}


class Setting(NamedTuple):
    """An argument or a flag of a command."""

    parameter: str  # its name in the program
    kind: Any  # the type that its value must have; a path is text
    is_path: bool = False
    may_be_path: bool = False  # or a name, such as digits or pareto:0
    flag: str | None = None  # of one that may be repeated


Commands = Mapping[str, Mapping[str, Setting]]  # command -> key in its table -> setting
Values = dict[Setting, Any]


def read(path: Path, commands: Commands) -> dict[str, Values]:
    """The settings of each command, the shared ones first; what no command knows, or takes, is refused."""
    tables = read_toml(path)
    shared = {_name(key): value for key, value in tables.items() if key in SHARED or not isinstance(value, dict)}
    if isinstance(shared.get("limits"), dict):
        shared["limits"] = path.name  # Limits.read finds the table there
    for key in shared:
        if key not in SHARED:
            raise InputError(
                f"{path}: unknown key {key!r} at the top; known: {', '.join(SHARED)}. "
                f"What belongs to one command stands in its table, such as [train]"
            )
    own = {name: value for name, value in tables.items() if _name(name) not in shared}
    for name in own:
        if name not in commands:
            raise InputError(f"{path}: unknown table [{name}]{did_you_mean(name, commands)}")
    settings = {}
    for name, known in commands.items():
        given = {key: (value, f"{path}: {key}") for key, value in shared.items() if key in known}
        borrowed = {_name(key): value for key, value in own.get("train", {}).items()}
        for key, mine in BORROWED.get(name, {}).items():
            if key in borrowed:
                given[mine] = (borrowed[key], f"{path}: [train] {key}")
        if name == "check" and "limits" in shared:
            given["criteria"] = (shared["limits"], f"{path}: limits")
        given |= {_name(key): (value, f"{path}: [{name}] {key}") for key, value in own.get(name, {}).items()}
        for key in given:
            if key not in known:
                raise InputError(f"{path}: unknown key {key!r} in [{name}]; known: {', '.join(known)}")
        settings[name] = {known[key]: _value(path, *found, known[key]) for key, found in given.items()}
    return settings


def _name(key: str) -> str:
    return key.replace("-", "_")


def _value(path: Path, value: Any, where: str, setting: Setting) -> Any:
    if setting.flag is not None and isinstance(value, dict):  # set = { weight = 2 } is --set weight=2
        return [f"{k}={v if isinstance(v, str) else json.dumps(v, default=str)}" for k, v in value.items()]
    if setting.flag is not None and not isinstance(value, list):
        value = [value]
    found = build(setting.kind, value, where)
    if not (setting.is_path or setting.may_be_path):
        return found
    if isinstance(found, list):
        return [_located(path.parent, each, setting.may_be_path) for each in found]
    return _located(path.parent, found, setting.may_be_path)


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


# -- the project's models -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Models:
    """Where [fit] and [tune] save their models, and from what they make them; None where the file does not say."""

    fitted: Path | None = None
    tuned: Path | None = None
    baseline: Path | None = None
    costs: str | None = None
    referral_cost: float | None = None  # of [fit]: wins over the costs'

    @classmethod
    def of(cls, settings: Mapping[str, Values]) -> Models:
        fit, tune = ({s.parameter: v for s, v in settings.get(name, {}).items()} for name in ("fit", "tune"))
        tuned = Path(tune["out"], "model") if "out" in tune else None
        fitted, baseline = (Path(fit[key]) if key in fit else None for key in ("out", "model"))
        return cls(fitted, tuned, baseline, fit.get("costs"), fit.get("referral_cost"))

    def choose(self, named: Path) -> tuple[Path, str]:
        """The model to take where the file names [fit]'s, and why; that of [tune] where it costs less on validation.

        Only where both were judged by the same costs on the same validation samples.
        """
        (_, first), (_, second) = map(_known, (named, self.tuned))
        if first is None or second is None or self.tuned is None or named != self.fitted:
            return named, ""
        if first.costs != second.costs or not np.array_equal(first.labels("validation"), second.labels("validation")):
            return named, f"takes {named}: {self.tuned} is of other costs or data; to take that one, name it"
        was, now = (100 * e.validation[e.chosen].mean_cost for e in (first, second))
        taken, other, why = (self.tuned, named, "less") if now < was else (named, self.tuned, "no more")
        numbers = f"{min(was, now):.2f} against {max(was, now):.2f}"
        numbers += " per 100 predictions"
        return taken, f"takes {taken}: it costs {why} on validation, {numbers}; to take the other, name {other}"

    def reviewed(self, taken: Path, why: str) -> tuple[Path, str]:
        """The baseline as long as nothing was fitted: the costs for that may be what the review is to find."""
        if taken != self.fitted or self.baseline is None or taken.exists():
            return taken, why
        return self.baseline, f"takes {self.baseline}: there is no {taken} yet"

    def outdated(self, folder: Path) -> str:
        """What changed since the model was made from it, and what to run; "" where nothing did. Contents count, not dates."""
        if folder not in (self.fitted, self.tuned):
            return ""
        (training, evidence), (start, _) = map(_known, (folder, self.baseline))
        command, changed = "csada tune" if folder == self.tuned else "csada fit", []
        with suppress(InputError):  # who needs these costs says what is wrong with them
            table = costs_for(self.costs, evidence.classes) if evidence and self.costs else None
            if evidence and table and (pairs := np.argwhere(table.values != evidence.costs.values).tolist()):
                (y, z), more = pairs[0], f" and {len(pairs) - 1} more" * (len(pairs) > 1)
                names = f"{evidence.classes[y]} labelled as {evidence.classes[z]}"
                changed.append(
                    f"{os.path.normpath(str(self.costs))} ({names}: {evidence.costs[y, z]:.4g}, now {table[y, z]:.4g}{more})"
                )
            own = None if folder == self.tuned else self.referral_cost
            if evidence and table:
                was, now = evidence.costs.referral_cost, table.referral_cost if own is None else own
                changed += [f"what a referral costs ({was}, now {now})".replace("None", "not given")] * (was != now)
        if training and start and (training.run, training.loss) != (start.run, start.loss):
            changed.append(f"the model {self.baseline}")
        return f"changed since {folder} was made: {' and '.join(changed)}; run {command}" if changed else ""


def _known(folder: Path | None) -> tuple[Training | None, Evidence | None]:
    """Nothing of a model that is missing or damaged: the command that takes it says so."""
    try:
        if folder is not None:
            return (found := deployed(folder)).training, found.evidence
    except InputError:
        pass
    return None, None


# -- a first project file --------------------------------------------------------------------------


class Start(NamedTuple):
    """Settings of [train] to start with; None: not needed."""

    model: str
    epochs: int | None
    recipe: str | None = None
    size: int | None = None


class Choice(NamedTuple):
    train: Start
    why: str


SEEN = 30_000  # training images that pass by on a CPU, all epochs together: some three minutes on two cores


def choose(samples: int, side: int | None, resizable: bool, *, gpu: bool) -> Choice:
    """By the number of training samples and the images' side, which is None for rows of numbers.

    On a CPU a ResNet gets 72 pixels: from 65 on it halves an image twice before its first block, and is many times as
    fast as with 64.
    """
    if side is None or (side <= 32 and not gpu):
        train = Start("mlp" if side is None else "cnn", 60, size=side)
        choice = Choice(train, "a small network, quick on a CPU")
    elif not gpu:
        train = Start("resnet9", min(max(SEEN // samples, 5), 150), "pmi-fast", 72)
        choice = Choice(train, "a quick start on a CPU; on a GPU: resnet34, epochs = 60, size = 224")
    elif side <= 64:
        choice = Choice(Start("resnet34", 60, "fast", side), "small images, on a GPU")
    else:
        choice = Choice(Start("resnet34", 60, "pmi-fast", min(side, 224)), "photographs, on a GPU")
    return choice if resizable else choice._replace(train=choice.train._replace(size=None))


def images(data: str, data_dir: Path | None = None) -> tuple[int | None, bool]:
    """The side of the images, None where there are none; and whether they can be resized when they are loaded."""
    module, where = find(data, data_dir)
    name = data.removeprefix(BUILTIN)
    if module == IMAGES and where is not None:
        return shorter_side(where), True
    return {"digits": 8, "mnist": 28, "cifar10": 32, "pills": 224, "pmi": 224}.get(name), name in ("pills", "pmi")


def suited_size(data: str, data_dir: Path | None = None, *, gpu: bool) -> int | None:
    """To which the sides of images are resized; None where they stay as they are."""
    return choose(1, *images(data, data_dir), gpu=gpu).train.size  # the same for any number of samples


def suited(splits: Splits, model: str | None, recipe: str | None, epochs: int | None, *, gpu: bool) -> Start:
    """What is given, and what suits the data where nothing is: another ResNet is trained as the one that suits."""
    side = min(splits.shape[1:]) if len(splits.shape) == 3 else None
    own = choose(len(splits.train), side, False, gpu=gpu).train
    model = model or own.model
    if recipe is None and (model == own.model or all(m.startswith("resnet") for m in (model, own.model))):
        return own._replace(model=model, epochs=epochs or own.epochs)
    return Start(model, epochs, recipe)


def template(data: str, costs: str, counts: Mapping[str, Mapping[str, int]], choice: Choice, **shared: Any) -> str:
    """The text of a project file; `shared` are further settings at its top."""
    train, validation, test = (f"{sum(counts[part].values()):,}" for part in ("train", "validation", "test"))
    own = "\n".join(f"{key} = {json.dumps(value)}" for key, value in plain(choice.train).items() if value is not None)
    top = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in shared.items())
    return f"""\
# A csada project. Commands that run in this folder read their settings here; from elsewhere: csada --project FILE COMMAND.
# The command line wins over this file. Paths are relative to this file.
# A table such as [train] may hold any argument or option of that command: csada train --help lists them.

data = {json.dumps(data, ensure_ascii=False)}
{top}# {len(counts["train"])} classes; {train} training, {validation} validation and {test} test samples
costs = {json.dumps(costs, ensure_ascii=False)}  # what each mistake costs
# limits = "limits.toml"  # optional: what must not happen too often; fit keeps to it, check judges by it

[train]  # the baseline: as few mistakes as possible; costs are ignored
out = "baseline"
# {choice.why}
{own}

[fit]  # the model and others trained from it, averaged and with a decision rule; what costs least on validation is saved
model = "baseline"
out = "model"
budget = 0.5  # accuracy budget: points that may be lost on validation
# refer = 0.05  # at most this share of the cases is left to a person; what that costs: referral_cost = 0.5, or in the costs

[evaluate]
model = "model"

[check]  # optional: does it keep the limits?
model = "model"

[tune]  # optional: searches for better settings than those of [fit]
model = "baseline"
out = "tuned"

[report]
folder = "model"
out = "report.html"

[review]  # optional: a page in which an expert says what mistakes cost
model = "model"
out = "review.html"

[export]
model = "model"
out = "model.onnx"

[predict]
model = "model"

[monitor]  # what decisions logged by csada predict --log cost
model = "model"
log = "decisions.jsonl"
"""
