"""Scores of any model, decided by cost: the labelled rows calibrate them and choose the rule, and all rows are decided."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from csada.classifier import Classifier, Input, Member
from csada.costs import CostMatrix
from csada.data.scores import CHUNK, ScoreTable
from csada.data.splits import PARTS, Splits
from csada.decisions import Abstention, Decision, Limits, MinimumExpectedCost, threshold_for_budget
from csada.errors import InputError
from csada.evaluation import predict_logits
from csada.files import whole
from csada.logbook import Log
from csada.metrics import REFER
from csada.models import create
from csada.rows import cell
from csada.workflow.fit import improve

CALIBRATING = 20  # labelled rows of validation; fewer calibrate nothing


class Row(NamedTuple):
    """predicted: where the case is referred to a person, what the rule would have said."""

    id: str
    predicted: str
    expected_cost: float
    referred: bool


def fitted(
    table: ScoreTable,
    costs: CostMatrix,
    *,
    budget: float = 0.5,
    refer: float | None = None,
    limits: Limits | None = None,
) -> Classifier:
    """A classifier without a network: how to decide by such scores, with the evidence of the labelled rows.

    budget: points of accuracy that may be lost on validation. refer, limits: as for `improve`.
    With fewer than CALIBRATING labelled rows in validation, or none in test, the scores are taken as they are: the rule decides
    by the costs alone, and there is no evidence.
    """
    arguments: dict[str, Any] = {} if table.floor is None else {"floor": table.floor}
    network = create("scores", len(table.classes), **arguments)
    takes = Input((len(table.columns),), "float32", table.columns)
    start = Classifier((Member(network, "scores", arguments),), takes, table.classes)
    validation, test = map(len, table.fitting)
    if validation >= CALIBRATING and test > 0:
        common: dict[str, Any] = {"budget": budget, "refer": refer, "limits": limits}
        return improve(start, table.splits(), costs, "cross_entropy", {"epochs": 0}, **common)
    if limits is not None:
        raise InputError(
            f"{table.name} has {validation} labelled rows for validation and {test} for test; "
            f"limits need {CALIBRATING} of validation and some of test: fill in labels"
        )
    rule = MinimumExpectedCost(costs)
    price = costs.referral_cost
    if refer == 0 or (refer is None and price is None):
        return replace(start, costs=costs, decision=Decision.of(rule))
    above = 0.0 if refer is None else threshold_for_budget(table.logits(slice(None)), rule, refer)
    return replace(start, costs=costs, decision=Decision.of(Abstention(rule, max(above, price or 0.0))))


def decided(classifier: Classifier, table: ScoreTable, log: Log | None = None) -> Iterator[Row]:
    """Every row in order, in double precision. log: has each decision, with its id, before its row comes."""
    if classifier.input.columns != table.columns:
        known = ", ".join(classifier.input.columns or ()) or f"{classifier.input}, and no scores"
        raise InputError(f"{table.name} has the columns {', '.join(table.columns)}; the model takes {known}")
    assert classifier.costs is not None
    automatic, names = classifier.decision.automatic(classifier.costs), np.array(table.classes, object)
    for start in range(0, len(table), CHUNK):
        some = slice(start, start + CHUNK)
        logits = table.logits(some, classifier.start.arguments.get("floor"))
        found, refer = automatic.decide(logits), np.asarray(classifier.rule(logits)) == REFER
        if log is not None:
            facts = found.chosen, found.cost, found.cost, refer, found.probabilities
            log.write(facts, [row.tobytes() for row in table.values[some]], table.ids[some])
        yield from map(Row, table.ids[some], names[found.chosen], found.cost.tolist(), refer.tolist())


def write_scores(classifier: Classifier, splits: Splits, path: Path) -> Path:
    """A CSV of the logits of all samples, from which `csada decide` decides as the classifier does: no digit is lost."""
    splits = classifier.adapt(splits, every_class=False)
    with whole(path) as partial, partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        names = [cell(name) for name in classifier.classes]
        out.writerow(["id", "label", "part", *(f"z:{name}" for name in classifier.classes)])
        for name in PARTS:
            part = getattr(splits, name)
            if not len(part):
                continue
            scores = predict_logits(classifier.network, part)
            ids = part.names or [str(i) for i in range(len(part))]
            for each, label, logits in zip(ids, scores.labels.tolist(), scores.logits.tolist(), strict=True):
                out.writerow([f"{name}/{each}", names[label], name, *map(repr, logits)])
    return path
