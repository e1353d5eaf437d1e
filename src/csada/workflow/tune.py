"""Settings for a method, searched for on validation within a budget of accuracy.

A trial is one fine-tuning, judged by what it costs on validation with the cheapest decision rule that keeps to the budget.
Training has to beat what needs none: the same model with the rule. Often it does not, and then nothing trained is chosen.

Trials are done in rounds, as many at once as there are workers. A proposal depends on the seed, its number and the trials of
the rounds before alone, and so does when it is given up. So a search that was killed resumes from `trials.jsonl` and ends as
an undisturbed one would have, if it has as many workers. The checkpoint of the trial that leads is kept: the model
is read from it, not trained again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data.splits import Splits
from csada.decisions import half_expected, held_out
from csada.errors import Diverged, InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.files import write_text
from csada.folders import OWN, reserved
from csada.metrics import Evaluation
from csada.models.modes import borrowed_threads
from csada.reading import build, parse_json, plain, read_json, read_text, write_json
from csada.training import Epoch, fit, make_method, split_options
from csada.workflow.engine import Engine, Progress, Task, Tell, at_once, carry_out
from csada.workflow.fit import as_plain, checked, checkpoint, improve, resolve, trained
from csada.workflow.settings import threads_for

if TYPE_CHECKING:
    import optuna

# What is searched, as far as the method has it: from default / factor to default * factor, on a logarithmic scale.
# `steps` is left out: every step costs time, and step_size moves the attack as far.
FACTORS = {"lr": 10.0, "weight": 10.0, "alpha": 10.0, "tau": 2.0, "step_size": 10.0, "epsilon": 10.0}
STARTUP = 5  # trials before proposals learn from results, and before any is given up
TRIALS, SEARCH = "trials.jsonl", "search.json"  # from which a search resumes


@dataclass(frozen=True)
class Point:
    accuracy: float
    mean_cost: float

    @classmethod
    def of(cls, e: Evaluation) -> Point:
        return cls(e.accuracy, e.mean_cost)


@dataclass(frozen=True)
class Judgement:
    """A model on validation. rule: by the cheapest one within the budget, fitted to the other folds, its cost half counted
    and half expected, as `fit` chooses; None where argmax itself is over the budget.

    value: what the search descends on: the cost with the rule or, over the budget, the cost by argmax with every mistake
    too many counted as a costliest one.
    """

    value: float
    argmax: Point
    rule: Point | None


@dataclass(frozen=True)
class EpochValue:
    epoch: int
    value: float


@dataclass(frozen=True)
class Trial:
    """One line of trials.jsonl."""

    number: int
    parameters: dict[str, float]
    proposed_by: str
    state: Literal["finished", "pruned", "diverged"]
    history: tuple[EpochValue, ...] = ()
    validation: Judgement | None = None


@dataclass(frozen=True)
class Tuning:
    """What a search found; `leader` is the trial that was chosen, None where no training beats the rule alone."""

    method: str
    budget: float
    options: dict[str, Any]  # all but those that are searched
    space: dict[str, tuple[float, float]]
    needed: float  # accuracy on validation
    baseline: Judgement
    trials: tuple[Trial, ...]
    planned: int
    leader: int | None
    seconds: float

    @property
    def chosen(self) -> dict[str, Any]:
        """The options of `csada fit` that give the chosen model again."""
        return self.options | ({"epochs": 0} if self.leader is None else self.trials[self.leader].parameters)


class Pruned(Exception):
    """A trial is given up."""


@dataclass(frozen=True)
class Search:
    """What is the same for every trial."""

    classifier: Classifier
    splits: Splits
    costs: CostMatrix
    method: str
    options: dict[str, Any]
    defaults: dict[str, float]  # of what is searched
    space: dict[str, tuple[float, float]]
    before: Scores
    budget: float  # points of accuracy

    @property
    def needed(self) -> float:
        return evaluate_scores(self.before, self.costs).accuracy - self.budget / 100

    def judge(self, scores: Scores) -> Judgement:
        by_argmax = evaluate_scores(scores, self.costs)
        lacking = self.needed - by_argmax.accuracy
        if lacking > 1e-12:
            fine = lacking * float(self.costs.values.max())
            return Judgement(by_argmax.mean_cost + fine, Point.of(by_argmax), None)
        common: dict[str, Any] = {"budget": self.budget / 100, "reference": self.before.logits.argmax(1), "refer": 0.0}
        decided, half = held_out(*scores, self.costs, **common), half_expected(*scores, self.costs)
        ruled = Evaluation.of(scores.labels, decided, self.costs, example_costs=half)
        return Judgement(ruled.mean_cost, Point.of(by_argmax), Point.of(ruled))

    def scores(self, model: nn.Module) -> Scores:
        return predict_logits(trained(self.classifier, model).network, self.splits, part="validation")

    def checkpoint(self, parameters: Mapping[str, float]) -> str:
        return checkpoint(self.classifier, self.splits, self.costs, self.method, self.options | dict(parameters))


def tune(
    classifier: Classifier,
    splits: Splits,
    costs: CostMatrix,
    out: Path,
    *,
    method: str = "csada",
    budget: float = 0.5,
    trials: int = 20,
    epochs: int = 5,
    batch_size: int | None = None,
    seed: int = 0,
    minutes: float | None = None,
    seen: str = "refuse",
    engine: Engine | None = None,
    on_progress: Progress | None = None,
) -> tuple[Tuning, Classifier]:
    """Search, and save the classifier that validation chose in `out`/model.

    budget: points of validation accuracy that may be lost against the given model by argmax. trials: in all, with those
    that `out` holds already. After `minutes` no further trial is started. engine: where trials are done, as many in a round
    as it does at once. on_progress(done, total, rows) counts epochs.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("csada tune needs Optuna: pip install 'csada[tune]'") from None
    started, engine, out = time.monotonic(), engine or Engine(), out.resolve()
    deadline = math.inf if minutes is None else time.time() + 60 * minutes
    if not 0 <= budget <= 100:
        raise InputError(f"budget is points of accuracy that may be lost, from 0 to 100; got {budget}")
    splits = checked(classifier, splits, seen)
    if splits.train.costs is not None:
        raise InputError(f"{splits.name} has costs that differ from sample to sample; tune needs one table for all")
    given = {"epochs": epochs, "seed": seed} | ({} if batch_size is None else {"batch_size": batch_size})
    options, threads = resolve(classifier, splits, method, given)
    with reserved(out / "model") as folder, borrowed_threads(threads):
        before = predict_logits(classifier.network, splits, part="validation")
        made = make_method(method, costs, split_options(options)[1], costs_given=True)
        found = {name: options.get(name, getattr(made, name, None)) for name in FACTORS}
        defaults = {name: float(value) for name, value in found.items() if value is not None}
        space = {name: (three(v / FACTORS[name]), three(v * FACTORS[name])) for name, v in defaults.items()}
        others = {name: value for name, value in options.items() if name not in space}
        search = Search(classifier, splits, costs, method, others, defaults, space, before, budget)
        same_search(out, search)
        baseline, done = search.judge(before), read_trials(out / TRIALS, search.space)
        early = dict[int, Trial]()  # that ended before one of a lower number
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study, size = optuna.create_study(), at_once(engine)

        def ended(trial: Trial) -> None:
            early[trial.number] = trial
            while len(done) in early:
                done.append(early.pop(len(done)))
            write_text(out / TRIALS, "".join(json.dumps(plain(line)) + "\n" for line in done))
            kept = best(done, baseline)
            for each in done:  # the checkpoint of the trial that leads is needed, the others' are not
                if kept is None or each.parameters != kept.parameters:
                    (out / search.checkpoint(each.parameters)).unlink(missing_ok=True)

        def rounds() -> Iterator[list[Task]]:
            for first in range(len(done) - len(done) % size, trials, size):
                known = done[:first]
                if len(known) == first:  # else one failed
                    tasks = []
                    for number in range(len(done), min(first + size, trials)):
                        call = partial(run_trial, search, known, number, *propose(search, study, known, number), out)
                        tasks.append(Task(f"trial {number}", call, ended, out / OWN / f"trial-{number}.epoch", epochs))
                    yield tasks

        progress = on_progress, trials * epochs, len(done) * epochs
        for error in carry_out(rounds(), engine, deadline, *progress).values():
            raise error
        leader = getattr(best(done, baseline), "number", None)
        tuning = Tuning(method, budget, others, space, search.needed, baseline, tuple(done), trials, leader, 0.0)
        better = improve(classifier, splits, costs, method, tuning.chosen, budget=budget, seen=seen, checkpoints=out)
        assert better.evidence is not None
        evidence = replace(better.evidence, trials=len(done))
        better = replace(better, evidence=evidence)
        better.save(folder)
        number = None if evidence.chosen.startswith("before") else leader
        tuning = replace(tuning, leader=number, seconds=time.monotonic() - started)
        write_json(out / "tuning.json", tuning)
    return tuning, better


def same_search(out: Path, search: Search) -> None:
    """Refuse to mix the trials of two searches in one folder."""
    names = ("budget", "method", "options", "space")
    settings = plain({"start": search.checkpoint({})} | {name: getattr(search, name) for name in names})
    file = out / SEARCH
    known = read_json(file if file.exists() else write_json(file, settings), dict)
    for key, value in settings.items():
        if known.get(key) != value:
            what = "another model, other data or costs" if key == "start" else f"other {key}"
            raise InputError(f"{out} holds the trials of another search, with {what}; give another --out")


def read_trials(file: Path, space: Mapping[str, tuple[float, float]]) -> list[Trial]:
    """Trials of what is searched; their numbers are those of their lines."""
    found: list[Trial] = []
    for i, line in enumerate(read_text(file).splitlines() if file.exists() else (), 1):
        where = f"{file}, line {i}"
        trial: Trial = build(Trial, parse_json(line, where), where)
        inside = trial.parameters.keys() == space.keys() and all(
            low <= trial.parameters[name] <= high for name, (low, high) in space.items()
        )
        if not inside or trial.number != i - 1 or (trial.state == "finished") != (trial.validation is not None):
            raise InputError(f"{where} is not of this search; give another --out, or delete the file")
        found.append(trial)
    return found


# -- trials ----------------------------------------------------------------------------------------


def propose(search: Search, study: optuna.Study, known: Sequence[Trial], number: int) -> tuple[dict[str, float], str]:
    """The settings of that trial, to three digits, and by whom: the defaults first, then TPE over the trials so far.

    The study is told these once. A sampler of its own: its draws depend on the search's seed and the number alone.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    space = search.space
    if number == 0:
        drawn, by = search.defaults, "defaults"
    else:
        ranges: Any = {name: optuna.distributions.FloatDistribution(*ends, log=True) for name, ends in space.items()}
        told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        for trial in known[len(told) :]:
            value = None if trial.validation is None else trial.validation.value
            seen = {step.epoch: step.value for step in trial.history}  # the later it was given up, the better it was
            more: Any = {
                "state": TrialState.PRUNED if value is None else TrialState.COMPLETE,
                "intermediate_values": seen,
            }
            study.add_trial(create_trial(value=value, params=trial.parameters, distributions=ranges, **more))
        seed = np.random.SeedSequence([int(search.options["seed"]), number]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed), n_startup_trials=STARTUP)
        asked = study.ask(ranges)
        study.tell(asked, state=TrialState.FAIL)  # what is tried are three digits of it
        drawn, by = asked.params, f"optuna {optuna.__version__}"
    return {name: min(max(three(drawn[name]), low), high) for name, (low, high) in space.items()}, by


def run_trial(
    search: Search,
    trials: Sequence[Trial],
    number: int,
    parameters: dict[str, float],
    proposed_by: str,
    out: Path,
    tell: Tell,
) -> Trial:
    """One trial, from its start or from where it was left. trials: those that were known when it was proposed."""
    options, made = search.options | parameters, partial(Trial, number, parameters, proposed_by)

    def on_epoch(line: Epoch, model: nn.Module) -> Epoch:
        scores = search.scores(model)
        if not bool(torch.isfinite(scores.logits).all()):
            raise Diverged(f"scores on validation are no longer numbers after epoch {line['epoch']}")
        judged = search.judge(scores)
        tell(line["epoch"], options["epochs"])
        if line["epoch"] < options["epochs"] and hopeless(judged.value, line["epoch"], trials):
            raise Pruned(EpochValue(line["epoch"], judged.value))
        point = judged.argmax
        return {"validation_accuracy": point.accuracy, "validation_cost": point.mean_cost, "value": judged.value}

    start, kept = search.classifier.start.model, out / search.checkpoint(parameters)
    try:
        with borrowed_threads(threads_for(search.splits.shape)):
            fitted = fit(
                start, search.splits, search.method, search.costs, on_epoch=on_epoch, checkpoint=kept, **options
            )
    except Pruned as pruned:
        return made("pruned", (pruned.args[0],))
    except Diverged:
        return made("diverged")
    steps = tuple(EpochValue(line["epoch"], line["value"]) for line in fitted.history)
    return made("finished", steps, search.judge(search.scores(as_plain(fitted.model))))


def hopeless(value: float, epoch: int, trials: Sequence[Trial]) -> bool:
    """In the worst quarter of the trials that came as far. Those given up there count, or the bar would only rise."""
    others = [step.value for trial in trials for step in trial.history if step.epoch == epoch]
    return len(others) >= STARTUP and value > float(np.quantile(others, 0.75))


def best(trials: Sequence[Trial], baseline: Judgement) -> Trial | None:
    """The cheapest within the budget, if it is cheaper than the baseline with its rule; of equals the more accurate."""

    def order(point: Point) -> tuple[float, float]:
        return point.mean_cost, -point.accuracy

    within = [(order(t.validation.rule), t) for t in trials if t.validation is not None and t.validation.rule]
    first = min(within, key=lambda found: found[0], default=None)
    assert baseline.rule is not None  # it is within its own budget
    return first[1] if first is not None and first[0][0] < baseline.rule.mean_cost - 1e-12 else None


def three(value: float) -> float:
    """To three digits: a command that people can read repeats the trial exactly."""
    return float(f"{value:.3g}")
