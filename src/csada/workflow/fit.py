"""A classifier improved: trained further by one method, given a decision rule, and saved as what validation chose.

Up to four rows are compared: the model before and after, each by argmax and by its decision rule. All choices are made on
validation: temperature and strength of the rules, and the row. The accuracy budget is counted from the given model by argmax.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from csada.classifier import Classifier, Member
from csada.costs import CostMatrix
from csada.data.augment import VIEWS, allowed_views
from csada.data.splits import PARTS, Splits
from csada.decisions import Admission, Decision, Limits, choose, enough, held_out, test_part, within_limits
from csada.errors import InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.evidence import HELD_OUT, EpochLine, Evidence, arrays_of, side_of
from csada.folders import OWN
from csada.methods.auxcst import AuxiliaryCosts
from csada.methods.csdnn import SigmoidNet
from csada.methods.sosr import CostRegressor
from csada.models import MODELS, head
from csada.models.modes import best_precision, borrowed_threads, device_of
from csada.reading import plain as as_json
from csada.training import Epoch, fit, make_method, split_options
from csada.training.checkpoints import digest
from csada.workflow.probe import Arrays, Probe, is_pictures, mistakes
from csada.workflow.runs import environment, lines, run_id
from csada.workflow.settings import Options, default_model, kind_of, options_for, threads_for

WHO = ("devices", "num_nodes", "max_batch")  # settings that say who does the work, not what comes of it


def improve(
    classifier: Classifier,
    splits: Splits,
    costs: CostMatrix,
    method: str = "csada",
    options: Mapping[str, Any] | None = None,
    *,
    budget: float = 0.5,
    refer: float | None = None,
    limits: Limits | None = None,
    seen: str = "refuse",
    checkpoints: Path | None = None,
    on_epoch: Callable[[Epoch, int], None] | None = None,
) -> Classifier:
    """The classifier that costs least on validation among the given one and the one trained further, with the evidence.

    options: of `fit` and of the method; those not given suit the data and the model. epochs=0 trains nothing and only
    chooses the rule. budget: points of accuracy that may be lost on validation. refer: the share of (validation) cases that
    may be left to a person. With a referral cost, only cases that are expected to cost more are, any share unless given.
    limits: what must not happen more often than stated; they take the place of the budget.
    checkpoints: a folder from which the same run resumes. on_epoch(line, total) is called after every epoch.
    """
    started, costs = datetime.now(UTC), costs.ordered(classifier.classes)
    splits = checked(classifier, splits, seen)
    check_limits(limits, splits, refer)
    resolved, threads = resolve(classifier, splits, method, options or {})
    settings, own = split_options(resolved)
    chosen = make_method(method, costs, own, costs_given=True)
    plain = {name: value for name, value in resolved.items() if name not in WHO}
    before, probe = classifier.network, Probe.of(chosen, splits.train)

    def told(line: Epoch, model: nn.Module) -> Epoch:
        e = evaluate_scores(predict_logits(trained(classifier, model).network, splits, part="validation"), costs)
        more: Epoch = {"validation_accuracy": e.accuracy, "validation_cost": e.mean_cost}
        if probe is not None:
            more["attacks"] = as_json(probe(model))
        if on_epoch is not None:
            on_epoch(line | more, resolved["epochs"])
        return more

    after, history, pictures = None, [], Arrays()
    with borrowed_threads(threads):
        if resolved["epochs"] > 0:
            kept = None if checkpoints is None else checkpoints / checkpoint(classifier, splits, costs, method, plain)
            fitted = fit(classifier.start.model, splits, chosen, costs, checkpoint=kept, on_epoch=told, **settings)
            after, history = trained(classifier, as_plain(fitted.model), splits), fitted.history
        if probe is not None and is_pictures(splits.train):
            pictures = probe.examples(before)
    made = Made(method if history else "none", plain, lines(history), pictures)
    return concluded(classifier, after, splits, costs, made, budget=budget, refer=refer, limits=limits, started=started)


@dataclass(frozen=True)
class Made:
    """How the improved classifier came about."""

    method: str
    options: Options
    history: tuple[EpochLine, ...] = ()
    pictures: Arrays = field(default_factory=Arrays)
    admissions: tuple[Admission, ...] = ()
    out_of_fold: Mapping[str, Scores] = field(default_factory=dict)  # by side: to choose by, instead of validation


def concluded(
    classifier: Classifier,
    after: Classifier | None,
    splits: Splits,
    costs: CostMatrix,
    made: Made,
    *,
    budget: float,
    refer: float | None,
    limits: Limits | None,
    started: datetime,
) -> Classifier:
    """Of both classifiers, each by argmax and by its own rule, the one that validation chooses, with the evidence."""
    classifiers = {"before": classifier} | ({} if after is None else {"after": after})
    scores = {
        (side, part): predict_logits(each.network, splits, part=part)
        for side, each in classifiers.items()
        for part in HELD_OUT
    }
    scores |= {(side, "validation"): made.out_of_fold[side] for side in classifiers if side in made.out_of_fold}
    validation = {side: scores[side, "validation"] for side in classifiers}
    arrays = made.pictures | {f"{side}_{part}": s.logits.numpy() for (side, part), s in scores.items()}
    arrays |= {f"{part}_labels": scores["before", part].labels.numpy() for part in HELD_OUT} | arrays_of(costs)
    if limits is None:
        rules = {side: decision_for(s, validation["before"], costs, budget, refer) for side, s in validation.items()}
        common: dict[str, Any] = {
            "budget": budget / 100,
            "reference": validation["before"].logits.argmax(1),
            "refer": refer,
        }
        arrays |= {f"{side}_held_out": held_out(*s, costs, **common) for side, s in validation.items()}
    else:
        rules = limited(validation, costs, limits)
        arrays |= {
            f"{side}_held_out": np.asarray(rules[side].rule(costs)(s.logits.numpy())) for side, s in validation.items()
        }
        arrays["limits_tested"] = test_part(arrays["validation_labels"])
    evidence = Evidence(
        splits.name,
        splits.classes,
        {part: len(getattr(splits, part)) for part in PARTS},
        "",  # of the row that is chosen
        made.method,
        made.options,
        budget,
        refer,
        rules,
        "before",
        made.history,
        environment(),
        started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seen=sum(int(classifier.known(splits, part).sum()) for part in HELD_OUT),
        admissions=made.admissions,
        limits=limits,
        arrays=arrays,
    )
    return as_chosen(classifiers, splits, costs, evidence)


def as_chosen(
    classifiers: Mapping[str, Classifier], splits: Splits, costs: CostMatrix, evidence: Evidence
) -> Classifier:
    """The classifier of the row that is cheapest on validation within the budget."""
    row = evidence.cheapest()
    arrays, mistaken = dict(evidence.arrays), None
    if is_pictures(splits.test):
        arrays |= mistakes(splits.test, evidence.decided(row), costs)
        mistaken = splits.test.take(arrays["mistakes"][:, 0]).names
    chosen = classifiers[side_of(row)]
    made: dict[str, Any] = {"architecture": chosen.architecture, "passes": chosen.passes, "mistaken": mistaken or ()}
    evidence = replace(evidence, chosen=row, arrays=arrays, **made)
    return replace(chosen, costs=costs, decision=evidence.decision, evidence=evidence)


def checked(classifier: Classifier, splits: Splits, seen: str) -> Splits:
    """The data as the classifier knows them, without samples in validation and test that it was trained on."""
    splits = classifier.adapt(splits)
    validation, test = (classifier.unseen(splits, part, seen) for part in HELD_OUT)
    return replace(splits, validation=validation, test=test)


def resolve(classifier: Classifier, splits: Splits, method: str, given: Mapping[str, Any]) -> tuple[Options, int]:
    """Every setting, and the number of threads that suits the samples."""
    architecture = classifier.members[0].architecture
    model = architecture if architecture in MODELS else default_model(splits.shape)
    settings = options_for(method, kind_of(model, splits.shape))
    fewer = min(settings["batch_size"], max(len(splits.train) // 8, 16))
    precision = best_precision(device_of(classifier.network))
    return settings | {"batch_size": fewer, "precision": precision, "seed": 0, **given}, threads_for(splits.shape)


def checkpoint(classifier: Classifier, splits: Splits, costs: CostMatrix, method: str, options: Options) -> str:
    """The name of the run's checkpoint: the same settings resume it, others start anew."""
    start = digest(*classifier.start.model.state_dict().values())
    return f"{OWN}/{run_id(splits, start=start, costs=costs.values, method=method, options=options)}"


def check_limits(limits: Limits | None, splits: Splits, refer: float | None) -> None:
    """Refuses, before anything is trained, what could not be kept."""
    if limits is None:
        return
    if refer:
        raise InputError(f"refer is {refer:g} beside limits; say it there: referred = {{ at_most = {refer:g} }}")
    truth = splits.validation.y.numpy()
    enough(limits.resolved(splits.classes), truth, test_part(truth))


def limited(validation: Mapping[str, Scores], costs: CostMatrix, limits: Limits) -> dict[str, Decision]:
    """The rule of each side that keeps the limits; a side that has none decides by cost alone."""
    rules, top, failed = {}, validation["before"].logits.argmax(1), dict[str, InputError]()
    for side, scores in validation.items():
        try:
            rules[side] = within_limits(*scores, costs, limits, before=top, tries=len(validation)).decision
        except InputError as error:
            rules[side], failed[side] = choose(*scores, costs, budget=1.0), error
    if len(failed) == len(rules):
        raise list(failed.values())[-1]
    return rules


def decision_for(
    scores: Scores, before: Scores, costs: CostMatrix, budget: float, refer: float | None = 0.0
) -> Decision:
    """How to decide by these validation scores, within so many points of the accuracy that `before` has by argmax.

    refer: the share of cases that may be left to a person, as for `choose`.
    """
    return choose(*scores, costs, budget=budget / 100, reference=before.logits.argmax(1), refer=refer)


def trained(classifier: Classifier, model: nn.Module, splits: Splits | None = None) -> Classifier:
    """The classifier with `model` in place of its only member, which was trained further on `splits`."""
    better = replace(classifier, members=(member_of(model, classifier.start),), evidence=None)
    if splits is None:
        return better
    shown = allowed_views(splits.train.augmentation, splits.shape)
    allowed = tuple(view for view in VIEWS if view in (*classifier.allowed_views, *shown))
    return replace(better, trained_on=np.union1d(classifier.trained_on, splits.train.ids), allowed_views=allowed)


def member_of(model: nn.Module, start: Member) -> Member:
    """The trained network, built again as the one that it started from; CSDNN's own is an mlp with sigmoids."""
    if not isinstance(model, SigmoidNet):
        return replace(start, model=model)
    features, *hidden = (layer.in_features for layer in model if isinstance(layer, nn.Linear))
    return Member(model, "mlp", {"features": features, "hidden": hidden, "activation": "sigmoid"})


def as_plain(model: nn.Module) -> nn.Module:
    """SOSR's and AuxCST's layer of cost estimates, and the last layer below it, as one: the layers that a file knows."""
    model = model.model if isinstance(model, AuxiliaryCosts) else model
    if not isinstance(model, CostRegressor):
        return model
    net, estimates = copy.deepcopy(model.net), model.estimates
    last = net.get_submodule(head(net))
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias.copy_(-(estimates.weight @ last.bias + estimates.bias))
        last.weight.copy_(-(estimates.weight @ last.weight))
    return net
