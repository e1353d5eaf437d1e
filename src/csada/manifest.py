"""model.json of a saved classifier, and what is known of it without its network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import load as load_arrays

from csada.costs import CostMatrix
from csada.data.augment import View
from csada.data.splits import Input
from csada.decisions import Decision
from csada.errors import InputError
from csada.evidence import Evidence, Training
from csada.folders import CONFIG
from csada.models.saved import SavedMember, check_files, fingerprint, read_tensors, signature
from csada.reading import build, parse_json, read_text

FORMAT = 2
ARRAYS = "arrays.safetensors"


class Deployed(NamedTuple):
    """What is known of a saved classifier without its network."""

    fingerprint: str
    classes: tuple[str, ...]
    decision: Decision
    training: Training | None
    evidence: Evidence | None


def deployed(folder: str | os.PathLike[str]) -> Deployed:
    """Without reading or building its network."""
    found = read_manifest(folder := Path(folder))
    arrays = read_tensors(folder / ARRAYS, found.arrays, load_arrays)
    costs = arrays.get("costs", CostMatrix.uniform(len(found.classes)).values)
    try:
        known = fingerprint(found.members, found.views, found.classes, found.decision, costs)
        return Deployed(known, found.classes, found.decision, found.training, complete(found.evidence, arrays))
    except InputError as error:
        raise InputError(f"{folder}: {error}; fit the model again") from None


def complete(evidence: Evidence | None, arrays: Mapping[str, Any]) -> Evidence | None:
    return evidence and replace(evidence, arrays={k: v for k, v in arrays.items() if k != "trained_on"})


@dataclass(frozen=True)
class Manifest:
    """model.json"""

    format: int
    members: tuple[SavedMember, ...]
    views: tuple[View, ...]
    input: Input
    classes: tuple[str, ...]
    decision: Decision
    training: Training | None
    evidence: Evidence | None
    arrays: str  # the hash of that file
    allowed_views: tuple[View, ...] = ("identity",)

    def __post_init__(self) -> None:
        check_files(self.members)


def read_manifest(folder: Path) -> Manifest:
    file = folder / CONFIG
    if not file.exists():
        raise InputError(f"{folder} is no saved model: it has no {CONFIG}; csada train and csada fit write one")
    values = parse_json(read_text(file), str(file))
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{file} is of format {found!r}, this version of csada reads {FORMAT}; train the model again with csada train"
        )
    if values.pop("sha256", None) != signature(values):
        raise InputError(
            f"{file} was changed after it was written; copy the whole folder again, or fit the model again"
        )
    manifest: Manifest = build(Manifest, values, str(file))
    return manifest
