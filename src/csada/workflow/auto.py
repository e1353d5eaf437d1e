"""`auto`: the best classifier that can be made from a given one, within an accuracy budget and a time limit.

A decision rule is only as good as the probabilities under it. So auto trains a few candidates from the given model, scores
every sample under the views that keep its label, averages the candidates that lower the cost on validation, calibrates the
average and gives it a decision rule. What is saved is what validation chose, be it the given model with its rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from csada.classifier import Classifier, Member
from csada.costs import CostMatrix
from csada.data.augment import View
from csada.data.splits import Splits
from csada.decisions import Selection, fit_temperature, greedy
from csada.errors import InputError
from csada.evaluation import predict_logits
from csada.models.members import as_network
from csada.models.modes import borrowed_threads
from csada.training import Epoch
from csada.workflow.candidates import Candidate, candidates_for, expected_seconds, student, train_candidate
from csada.workflow.fit import Made, checked, concluded
from csada.workflow.runs import lines
from csada.workflow.settings import threads_for

GIVEN = "given"


def auto(
    classifier: Classifier,
    splits: Splits,
    costs: CostMatrix,
    *,
    members: int = 3,
    views: Sequence[View] | None = None,
    single: bool = False,
    minutes: float | None = None,
    seed: int = 0,
    budget: float = 0.5,
    refer: float = 0.0,
    seen: str = "refuse",
    checkpoints: Path | None = None,
    on_epoch: Callable[[Epoch, int], None] | None = None,
) -> Classifier:
    """The cheapest classifier on validation among the given one and averages of candidates that start from it.

    members: at most so many networks. views: of each sample; those that training showed unless given. single: what was
    chosen, distilled into one network that sees each sample once. minutes: no training starts that would end later.
    budget, refer, seen, checkpoints: as for `improve`.
    """
    if members < 1:
        raise InputError(f"members is {members}; 1 or more are needed")
    started, deadline = datetime.now(UTC), None if minutes is None else time.monotonic() + 60 * minutes
    splits = checked(classifier, splits, seen)
    shown = tuple(views) if views else classifier.allowed_views
    given = replace(classifier, views=shown)  # refuses views that it was not trained for
    history: list[Epoch] = []

    def trained(candidate: Candidate) -> Member | None:
        """None where the time left does not suffice."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and expected_seconds(candidate, classifier, splits, history) > left:
            return None

        def told(line: Epoch) -> None:
            if on_epoch is not None:
                on_epoch(line | {"epoch": len(history) + line["epoch"], "member": candidate.name}, total)

        member, added = train_candidate(classifier, splits, costs, candidate, checkpoints, told)
        history.extend(line | {"epoch": len(history) + 1 + i} for i, line in enumerate(added))
        return member

    tried = candidates_for(classifier, splits, costs, members, seed)
    learner = student(classifier, splits, seed) if single else None
    total = sum(candidate.epochs for candidate in (*tried, *([learner] if learner else [])))
    with borrowed_threads(threads_for(splits.shape)):
        library = {GIVEN: classifier.start} | {c.name: m for c in tried if (m := trained(c)) is not None}
        chosen, members_, selection = select(given, library, splits, costs, budget / 100, members)
        after = chosen
        if learner is not None and len(members_) * len(shown) > 1:
            taught = trained(learner.taught_by(chosen.network))
            after = None if taught is None else replace(chosen, members=(taught,), views=("identity",))
    options: dict[str, Any] = {"members": members, "views": list(shown), "single": single, "seed": seed}
    made = Made("auto", options, lines(history), admissions=selection.steps)
    return concluded(classifier, after, splits, costs, made, budget=budget, refer=refer, started=started)
