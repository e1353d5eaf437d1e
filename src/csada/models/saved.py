"""Members in a folder: one file of weights each, and what model.json says of it. Every file is known by its hash."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from csada.errors import InputError
from csada.folders import CONFIG
from csada.models import weights
from csada.models.factories import rebuild, sketch
from csada.models.members import Member, check_numbers
from csada.models.weights import DAMAGED, WEIGHTS, misfits
from csada.reading import plain, read_bytes, sha256


@dataclass(frozen=True)
class SavedMember:
    architecture: str
    arguments: dict[str, Any]
    file: str
    sha256: str
    temperature: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self.temperature, self.weight)


def file_of(i: int) -> str:
    """The weights of member i, counted from 0: model.safetensors, model-2.safetensors, ..."""
    return WEIGHTS.replace(".", f"-{i + 1}.") if i else WEIGHTS


def check_files(members: Sequence[SavedMember]) -> None:
    for i, member in enumerate(members):
        if member.file != file_of(i):
            raise InputError(f"member {i + 1} has its weights in {member.file!r}; weights in {file_of(i)} are needed")


def check_architectures(members: Sequence[Member], classes: int) -> None:
    """Every member can be built again from what a file says of it."""
    for number, member in enumerate(members, 1):
        if member.architecture is None:
            which = "the network" if len(members) == 1 else f"member {number}"
            raise InputError(
                f"{which} cannot be built again from a file: give architecture='package.module:factory' (and arguments) "
                "to Classifier.of, or export it as ONNX, which needs neither"
            )
        built = sketch(member.architecture, classes, member.arguments, "the classifier", trust=True)
        if differences := misfits(built, member.model.state_dict()):
            raise InputError(
                f"{member.architecture} with {dict(member.arguments)} builds another network: {differences}"
            )


def save_members(members: Sequence[Member], folder: Path) -> tuple[SavedMember, ...]:
    saved = []
    for i, member in enumerate(members):
        assert member.architecture is not None  # as checked
        (folder / file_of(i)).write_bytes(content := weights.as_bytes(member.model))
        own, digest = dict(member.arguments), sha256(content)
        saved.append(SavedMember(member.architecture, own, file_of(i), digest, member.temperature, member.weight))
    return tuple(saved)


def fingerprint(members: Sequence[Member | SavedMember], *more: Any) -> str:
    """16 hexadecimal digits of what decides: weights, what they are multiplied with, and `more`."""
    hashes = [m.sha256 if isinstance(m, SavedMember) else sha256(weights.as_bytes(m.model)) for m in members]
    facts = [(digest, m.temperature, m.weight) for digest, m in zip(hashes, members, strict=True)]
    return sha256(json.dumps(plain([facts, *more])).encode())[:16]


def load_members(
    saved: Sequence[SavedMember], folder: Path, classes: int, device: torch.device | str, trust: bool
) -> tuple[Member, ...]:
    members = []
    for each in saved:
        state = read_tensors(folder / each.file, each.sha256, load_tensors)
        where = str(folder / CONFIG)
        model = rebuild(each.architecture, classes, each.arguments, state, where, trust).to(device)
        members.append(Member(model, each.architecture, each.arguments, each.temperature, each.weight))
    return tuple(members)


def read_tensors(path: Path, digest: str, load: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    content = read_bytes(path, "weights")
    if sha256(content) != digest:
        raise InputError(f"{path} is damaged: it is not the file that {CONFIG} describes; copy the whole folder again")
    try:
        return load(content)
    except DAMAGED as error:
        raise InputError(f"{path} is damaged: {error}") from None


def signature(values: dict[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode())
