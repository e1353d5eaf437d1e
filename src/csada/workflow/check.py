"""Acceptance: a saved classifier judged by limits on samples that chose nothing, once for each set of criteria.

Every look is recorded in checks.json in the model's folder. The same criteria, model and samples again get the recorded
outcome. The file stays when a new model replaces the old one: a verdict is of one model only, but the samples were seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from csada import bounds
from csada.classifier import Classifier
from csada.costs import did_you_mean
from csada.data.splits import PARTS, Part, Splits, hashed
from csada.decisions import Abstention
from csada.decisions.acceptance import Check, Criterion, Group, Looked, verdicts
from csada.decisions.limits import Limit, Limits
from csada.errors import InputError, explained
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.evidence import side_of
from csada.files import write_text
from csada.folders import CONFIG, locked
from csada.models.saved import signature
from csada.reading import build, parse_json, plain, read_text, sha256, write_json
from csada.report.card import card
from csada.rows import read_table
from csada.workflow.evaluate import part_for

FILE = "checks.json"
FORMAT = 1
AGREE = 0.01  # two machines' logits of the same samples

Names = Mapping[str, str]


@dataclass(frozen=True)
class _Record:
    """checks.json"""

    format: int
    checks: tuple[Check, ...]


class _Samples(NamedTuple):
    """The samples that are judged."""

    parts: list[Part]
    ids: NDArray[np.uint64]
    truth: NDArray[np.int64]
    names: list[str]  # none where the samples have none
    trained_on: int


def check(
    classifier: Classifier,
    folder: Path,
    splits: Splits,
    criteria: Limits,
    *,
    part: str = "auto",
    seen: str = "refuse",
    groups: Path | None = None,
    source: str = "",
) -> Looked:
    """Whether the classifier that is saved in `folder` keeps the limits; recorded there before anybody sees it.

    part: auto takes all of the data where the classifier has seen none of them, else the test part. groups: a CSV file that
    says in which group each sample is. source: the data's path, which names in that file may start with.
    """
    limits = criteria.resolved(classifier.classes)
    if part not in ("auto", "test", "all"):
        raise InputError(f"unknown part {part!r}; known: auto, test, all: what chose the model cannot accept it")
    part = part_for(classifier, splits)[0] if part == "auto" else part
    known = classifier.adapt(splits, every_class=False)
    found = _samples(classifier, known, PARTS if part == "all" else (part,), seen)
    grouped = {} if groups is None else read_groups(groups, known, found.names, source)
    in_order = np.lexsort((found.truth, found.ids))
    told = [found.ids[in_order].tolist(), found.truth[in_order].tolist(), sorted(grouped.items())]
    about: dict[str, Any] = {
        "criteria": sha256(json.dumps(sorted(plain(limits), key=lambda limit: str(limit["name"]))).encode()),
        "model": _fingerprint(folder),
        "samples": hashed([np.sort(found.ids).astype("<u8")]).hex(),
        "truth": hashed([json.dumps(told).encode()]).hex(),
    }
    with explained(f"cannot write the record to {folder}", "copy the model elsewhere"), locked(folder) as mine:
        if not mine:
            raise InputError(f"{folder} is in use by another run of csada; wait for it")
        checks = read_checks(folder)
        for i, each in enumerate(checks):
            if all(getattr(each, name) == value for name, value in about.items()):
                _describe(classifier, folder)  # whoever looked may have been killed before that
                return Looked(each, _same(checks[:i], each), again=True)
        results, costs = _look(classifier, found, limits, grouped)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about |= {"data": splits.name, "part": part, "count": len(found.truth), "trained_on": found.trained_on}
        new = Check(now, stated=plain(criteria), results=results, groups=costs, **about)
        record = plain(_Record(FORMAT, (*checks, new)))
        write_json(folder / FILE, record | {"sha256": signature(record)})
        _describe(classifier, folder)
        return Looked(new, _same(checks, new))


def _describe(classifier: Classifier, folder: Path) -> None:
    """The folder's card with the last check."""
    if classifier.evidence is not None:
        facts = classifier.facts(), classifier.views, latest(folder)
        write_text(folder / "README.md", card(classifier.evidence, str(classifier.input), *facts))


def _look(
    classifier: Classifier, found: _Samples, limits: Sequence[Limit], grouped: Names
) -> tuple[tuple[Criterion, ...], tuple[Group, ...]]:
    scores = Scores(*map(torch.cat, zip(*(predict_logits(classifier.network, p) for p in found.parts), strict=True)))
    before = _before(classifier, scores) if any(limit.kind == "accuracy_lost" for limit in limits) else None
    masks = {
        name: np.array([grouped[each] == name for each in found.names], bool)
        for name in dict.fromkeys(grouped.values())
    }
    predicted, refers = np.asarray(classifier.rule(scores.logits)), isinstance(classifier.rule, Abstention)
    results = verdicts(limits, found.truth, predicted, before, masks, refers=refers)
    return results, tuple(_cost(classifier, scores, name, mask) for name, mask in masks.items())


def read_checks(folder: Path) -> tuple[Check, ...]:
    """All looks that were recorded in a model's folder, oldest first."""
    file = folder / FILE
    if not file.exists():
        return ()
    values = parse_json(read_text(file), str(file))
    if not isinstance(values, dict) or values.pop("sha256", None) != signature(values):
        raise InputError(
            f"{file} was changed after it was written, so it proves nothing; restore it, or remove it and judge on new samples"
        )
    record: _Record = build(_Record, values, str(file))
    return record.checks


def latest(folder: Path) -> Looked | None:
    """The last check of the model that the folder holds now."""
    checks, model = read_checks(folder), _fingerprint(folder)
    own = [i for i, each in enumerate(checks) if each.model == model]
    return Looked(checks[own[-1]], _same(checks[: own[-1]], checks[own[-1]])) if own else None


def _same(checks: Sequence[Check], new: Check) -> tuple[Check, ...]:
    return tuple(each for each in checks if each.samples == new.samples)


def _fingerprint(folder: Path) -> str:
    """model.json's own hash, which covers the weights', after it was read as a model."""
    return str(parse_json(read_text(folder / CONFIG), CONFIG)["sha256"])


def _samples(classifier: Classifier, splits: Splits, names: Sequence[str], seen: str) -> _Samples:
    parts = [part for name in names if len(part := classifier.unseen(splits, name, seen))]
    if not parts:
        raise InputError(f"{splits.name} has no sample that the classifier was not trained on; give other data")
    ids, truth = np.concatenate([p.ids for p in parts]), np.concatenate([p.y.numpy() for p in parts])
    trained_on = sum(int(classifier.known(splits, name).sum()) for name in names) if seen == "keep" else 0
    return _Samples(parts, ids, truth, [name for p in parts for name in p.names or ()], trained_on)


def _before(classifier: Classifier, scores: Scores) -> NDArray[np.int64]:
    """The given model's most probable classes. Whether they are of these samples, the saved model's own scores tell."""
    evidence, way = classifier.evidence, "or leave accuracy_lost out"
    if evidence is None:
        raise InputError(
            f"accuracy_lost needs the given model's predictions, which csada fit saves; judge a fitted model, {way}"
        )
    own, truth = evidence.logits(side_of(evidence.chosen)), evidence.labels()
    same = np.array_equal(truth, scores.labels.numpy()) and np.allclose(own, scores.logits.numpy(), AGREE, AGREE)
    if not same:
        raise InputError(
            f"accuracy_lost needs the given model's predictions on these very samples; csada fit saved those on the "
            f"{len(truth):,} test samples of {evidence.data}: judge them, {way}"
        )
    return np.asarray(evidence.logits("before").argmax(1))


def _cost(classifier: Classifier, scores: Scores, name: str, mask: NDArray[np.bool_]) -> Group:
    if classifier.costs is None or not mask.any():
        return Group(name, int(mask.sum()), None)
    chosen = torch.from_numpy(mask)
    e = evaluate_scores(Scores(scores.logits[chosen], scores.labels[chosen]), classifier.costs, classifier.rule)
    pairs = tuple(e.pair_error(*pair) for pair in classifier.costs.critical_pairs())
    return Group(name, e.samples, e.mean_cost, pairs)


def read_groups(path: Path, splits: Splits, needed: Sequence[str], source: str = "") -> Names:
    """Sample -> group, of a table with the columns file (or row) and group; every needed sample must be in one."""
    every = {name for part in splits.parts.values() for name in part.names or ()}
    if not every:
        raise InputError(f"{splits.name} has neither files nor rows, so --groups {path} cannot name its samples")
    header, lines = read_table(path)
    columns = [name.casefold() for name in header]
    first = next((name for name in ("file", "row") if name in columns), None)
    if first is None or "group" not in columns:
        raise InputError(f"{path} has the columns {', '.join(header)}; file (or row) and group are needed")
    at, prefix, groups = (columns.index(first), columns.index("group")), f"{Path(source).as_posix()}/", dict[str, str]()
    strange = []
    for line, row in lines:
        if not all(row[i] for i in at):
            raise InputError(f"{path}, line {line}: a {first} and its group are needed")
        name, group = (row[i] for i in at)
        name = name if name in every else Path(name).as_posix().removeprefix(prefix)
        if groups.setdefault(name, group) != group:
            raise InputError(f"{path}, line {line}: {name} is in the group {groups[name]!r} already; keep one")
        strange += [name] * (name not in every)
    bounds.check("groups", found := len({*groups.values()}), f"{path} names {found:,} groups")
    if strange:
        near = did_you_mean(strange[0], sorted(every)).partition("; known")[0]
        raise InputError(f"{path} names {len(strange):,} {first}s that {splits.name} lacks, first {strange[0]}{near}")
    if missing := [name for name in needed if name not in groups]:
        raise InputError(
            f"{path} lacks {len(missing):,} of the {len(needed):,} {first}s that are judged, first {missing[0]}; add them"
        )
    return groups
