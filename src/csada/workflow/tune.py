"""Settings for a method, searched for on validation data under a budget of accuracy.

The search may only lose so many points of accuracy against the model that was handed in, decided by argmax. A trial is one
fine-tuning; it is judged by what it costs on validation with the decision rule that still keeps to the budget. Training has
to beat what needs none: the same model with the rule. Often it does not, and then nothing trained is recommended.

A proposal depends on the seed and the trials before it alone, and a trial on its settings alone. So a search that was killed
goes on from `trials.jsonl`, the list of what is done, and ends as an undisturbed one would have. Of the trials that lead, the
checkpoint is kept: the recommended model is read from it, not trained again.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from csada.costs import CostMatrix
from csada.data.fetch import Progress
from csada.data.splits import Splits
from csada.decisions import MinimumExpectedCost, Rule, argmax, from_plain, frontier
from csada.errors import Diverged, InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.workflow.train import best_device
from csada.workflow.evidence import fitting
from csada.workflow.fit import fine_tune, folded, resolved, save_fine_tuned
from csada.folders import beside, checkpoint_name, locked
from csada.workflow.runs import environment, read_json, write_json
from csada.files import write_text
from csada.folders import CHECKPOINT, checkpoint_name, locked
from csada.metrics import Evaluation, bootstrap_paid
from csada.models import load, read_config
from csada.models.modes import borrowed_threads, device_of
from csada.models.weights import WEIGHTS
from csada.report.card import evaluations, recommended
from csada.training import Epoch, Settings, fit, make_method
from csada.workflow.evidence import fitting
from csada.workflow.fit import fine_tune, folded, resolved, save_fine_tuned
from csada.workflow.runs import environment, read_json, write_json
from csada.workflow.train import best_device

FORMAT = 1
# What is searched, as far as the method has it: from default / factor to default * factor, on a logarithmic scale.
# `steps` is left out: every step costs time, and step_size moves the attack as far.
FACTORS = {"lr": 10.0, "weight": 10.0, "alpha": 10.0, "tau": 2.0, "step_size": 10.0, "epsilon": 10.0}
STARTUP = 5  # trials before proposals learn from results, and before any is given up
STATISTICS = {"accuracy": "accuracy", "cost": "weighted_error_rate"}  # the record's names: Evaluation's
BASELINE, RULED, RECOMMENDED = "baseline", "baseline + rule", "recommended"
ROWS = {BASELINE: "before", RULED: "before + rule", RECOMMENDED: "after + rule"}  # ours: those of `fine_tune`

Record = dict[str, Any]


class Pruned(Exception):
    """A trial is given up; `line` is its last epoch."""

    def __init__(self, line: Epoch) -> None:
        self.line = line


@dataclass(frozen=True)
class Search:
    """What is the same for every trial."""

    bundle: Path
    start: nn.Module
    splits: Splits
    costs: CostMatrix
    method: str
    options: Record  # all but those that are searched
    defaults: dict[str, float]  # of those that are searched
    space: dict[str, tuple[float, float]]
    budget: float  # points
    before: Scores  # of the start, on validation
    needed: int  # validation samples that must be right

    @property
    def seed(self) -> int:
        return int(self.options["seed"])

    def scores(self, model: nn.Module) -> Scores:
        return predict_logits(model, self.splits, part="validation")

    def judge(self, scores: Scores) -> Record:
        """A model on validation: by argmax, and by the cheapest rule with which at least `needed` are still right.

        value is what the search descends on: the cost with the rule or, over the budget, the cost by argmax with every
        mistake too many counted as a dearest one.
        """
        plain = evaluate_scores(scores, self.costs)
        spare = int(np.trace(plain.confusion)) - self.needed  # correct predictions that the rule may give up
        judged = {"spare": spare, "argmax": summary(plain), "rule": None}
        if spare < 0:
            fine = -spare / plain.samples * float(self.costs.values.max())
            return judged | {"value": plain.weighted_error_rate + fine}
        rule = MinimumExpectedCost.within_budget(*scores, self.costs, spare / plain.samples)
        ruled = evaluate_scores(scores, self.costs, rule)
        fitted = {"temperature": rule.temperature, "strength": rule.strength}
        return judged | {"rule": summary(ruled) | fitted, "value": ruled.weighted_error_rate}

    def checkpoint(self, parameters: dict[str, float]) -> str:
        """The file's name, the one under which `fine_tune` looks for it."""
        weights = hashlib.sha256((self.bundle / WEIGHTS).read_bytes()).hexdigest()
        settings = {"costs": self.costs.values.tolist(), "method": self.method, "options": self.options | parameters}
        return f"{checkpoint_name(self.splits, start=weights, **settings)}.pt"


def tune(
    bundle: Path,
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
    device: torch.device | None = None,
    on_progress: Progress | None = None,
) -> Record:
    """Search, recommend, and write both into `out`; the record.

    budget: points of validation accuracy that may be lost against the bundle's model by argmax. trials: in all, with
    those that `out` holds already. batch_size and what the search starts from: by the kind of model, as `fine_tune` has
    them. After `minutes` no further trial is started. on_progress(done, total) counts epochs.
    """
    started, deadline = time.time(), math.inf if minutes is None else time.monotonic() + 60 * minutes
    if not 0 <= budget <= 100:
        raise InputError(f"budget is points of accuracy that may be lost, from 0 to 100; got {budget}")
    if method == "csdnn":
        raise InputError("csdnn trains a network of its own, which cannot be saved; tune another method")
    config = read_config(bundle)
    splits = fitting(splits, config, str(bundle))
    if splits.train.costs is not None:
        raise InputError(f"{splits.name} has costs that differ from sample to sample; tune needs one table for all")
    given = {"epochs": epochs, "seed": seed} | ({} if batch_size is None else {"batch_size": batch_size})
    options, threads = resolved(splits, costs, method, given, config)
    with locked(out) as mine, borrowed_threads(threads):
        if not mine:
            raise InputError(f"{out} is in use by another run; wait for it, or give another --out")
        shutil.rmtree(beside(out / "model"), ignore_errors=True)  # by a search that was killed
        start = load(bundle).to(device or best_device())
        search = make_search(bundle, start, splits, costs, method, options, budget)
        settings = same_search(out, search)
        baseline = search.judge(search.before)
        done = read_trials(out)
        while len(done) < trials and time.monotonic() < deadline:

            def tell(epoch: int, earlier: int = len(done) * epochs) -> None:
                if on_progress is not None:
                    on_progress(earlier + epoch, trials * epochs)

            before = best(done, baseline)
            done.append(run_trial(search, done, out, tell))
            leader = best(done, baseline)
            for trial in (before, done[-1]):  # only the checkpoint of the trial that leads is needed
                if trial is not None and (leader is None or trial["parameters"] != leader["parameters"]):
                    (out / search.checkpoint(trial["parameters"])).unlink(missing_ok=True)
            write_text(out / "trials.jsonl", "".join(json.dumps(line) + "\n" for line in done))
        record: Record = {"format": FORMAT, "experiment": "tune", **settings, "planned": trials, "trials": done}
        record |= recommend(search, baseline, best(done, baseline), len(done), out)
        record |= {"verdict": verdict(record), "environment": environment(), "seconds": time.time() - started}
        record["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))
        write_json(out / "tuning.json", record)
    return record


def make_search(
    bundle: Path, start: nn.Module, splits: Splits, costs: CostMatrix, method: str, options: Record, budget: float
) -> Search:
    names = {f.name for f in fields(Settings)}
    made = make_method(method, costs, {k: v for k, v in options.items() if k not in names}, costs_given=True)
    found = {name: options.get(name, getattr(made, name, None)) for name in FACTORS}
    defaults = {name: float(value) for name, value in found.items() if value is not None}
    space = {name: (three(v / FACTORS[name]), three(v * FACTORS[name])) for name, v in defaults.items()}
    others = {name: value for name, value in options.items() if name not in space}
    before = predict_logits(start, splits, part="validation")
    right = int((before.logits.argmax(1) == before.labels).sum())
    needed = right - math.floor(budget / 100 * len(before.labels) + 1e-9)
    return Search(bundle, start, splits, costs, method, others, defaults, space, budget, before, needed)


def same_search(out: Path, search: Search) -> Record:
    """What the trials in `out` have in common; another search there is refused."""
    parts = {name: len(getattr(search.splits, name)) for name in ("train", "validation", "test")}
    settings = {
        "data": {"name": search.splits.name, "classes": list(search.splits.classes), "samples": parts},
        "samples": Path(checkpoint_name(search.splits)).name,
        "start": read_config(search.bundle)["metadata"],
        "weights": hashlib.sha256((search.bundle / WEIGHTS).read_bytes()).hexdigest()[:16],
        "costs": search.costs.values.tolist(),
        "budget": search.budget,
        "method": search.method,
        "options": search.options,
        "space": {name: list(ends) for name, ends in search.space.items()},
    }
    file = out / "search.json"
    if not file.exists():
        write_json(file, settings)
    known = read_json(file)
    for key, value in settings.items():
        if known.get(key) != value:
            raise InputError(
                f"{out} holds the trials of another search, of other {key}; give another --out, or remove that folder"
            )
    return settings


def read_trials(out: Path) -> list[Record]:
    file = out / "trials.jsonl"
    if not file.exists():
        return []
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise InputError(f"{file} is damaged: {error}; remove the folder {out} to start anew") from None


# -- trials ----------------------------------------------------------------------------------------


def propose(search: Search, trials: Sequence[Record]) -> dict[str, float]:
    """The next trial's settings, to three digits: the defaults first, then by Optuna, or at random where it is missing."""
    number, space = len(trials), search.space
    if number == 0:
        drawn = search.defaults
    elif optuna_version() is not None:
        drawn = by_optuna(space, trials, int(np.random.SeedSequence([search.seed, number]).generate_state(1)[0]))
    else:
        generator = np.random.default_rng([search.seed, number])
        drawn = {name: low * (high / low) ** generator.random() for name, (low, high) in space.items()}
    return {name: min(max(three(drawn[name]), low), high) for name, (low, high) in space.items()}


def by_optuna(space: dict[str, tuple[float, float]], trials: Sequence[Record], seed: int) -> dict[str, float]:
    """TPE over the trials so far. The study lives for one proposal: what is remembered is in trials.jsonl."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges: dict[str, Any] = {
        name: optuna.distributions.FloatDistribution(low, high, log=True) for name, (low, high) in space.items()
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP))
    for trial in trials:
        known: Record = {"params": trial["parameters"], "distributions": ranges}
        if trial["state"] == "finished":
            known |= {"value": trial["validation"]["value"]}
        else:  # the later a trial was given up, the better it was
            seen = {line["epoch"]: line["value"] for line in trial["history"]}
            known |= {"state": optuna.trial.TrialState.PRUNED, "intermediate_values": seen}
        study.add_trial(optuna.trial.create_trial(**known))
    return dict(study.ask(ranges).params)


def optuna_version() -> str | None:
    try:
        import optuna
    except ImportError:
        return None
    return str(optuna.__version__)


def run_trial(search: Search, trials: Sequence[Record], out: Path, tell: Callable[[int], None]) -> Record:
    """The next trial, from its start or from where it was left."""
    number, parameters, version = len(trials), propose(search, trials), optuna_version()
    options = search.options | parameters

    def on_epoch(line: Epoch, model: nn.Module) -> Epoch:
        scores = search.scores(model)
        if not bool(torch.isfinite(scores.logits).all()):
            raise Diverged(f"scores on validation are no longer numbers after epoch {line['epoch']}")
        judged = search.judge(scores)
        more = {f"validation_{name}": value for name, value in judged["argmax"].items()} | {"value": judged["value"]}
        tell(line["epoch"])
        if line["epoch"] < options["epochs"] and hopeless(judged["value"], line["epoch"], trials):
            raise Pruned(line | more)
        return more

    proposed_by = "defaults" if number == 0 else "random" if version is None else f"optuna {version}"
    trial: Record = {"number": number, "parameters": parameters, "proposed_by": proposed_by, "validation": None}
    told: Record = {"on_epoch": on_epoch, "checkpoint": out / search.checkpoint(parameters)}
    try:
        fitted = fit(search.start, search.splits, search.method, search.costs, **told, **options)
    except Pruned as pruned:
        return trial | {"state": "pruned", "history": [pruned.line]}
    except Diverged:
        return trial | {"state": "diverged", "history": []}
    judged = search.judge(search.scores(folded(fitted.model)))
    return trial | {"state": "finished", "validation": judged, "history": fitted.history}


def hopeless(value: float, epoch: int, trials: Sequence[Record]) -> bool:
    """In the worst quarter of the trials that came as far. Those given up there count, or the bar would only rise."""
    others = [line["value"] for trial in trials for line in trial["history"] if line["epoch"] == epoch]
    return len(others) >= STARTUP and value > float(np.quantile(others, 0.75))


def best(trials: Sequence[Record], baseline: Record) -> Record | None:
    """The cheapest within the budget, if it is cheaper than the baseline with its rule; of equals the more accurate."""

    def order(trial: Record) -> tuple[float, float]:
        rule = trial["validation"]["rule"]
        return rule["cost"], -rule["accuracy"]

    within = [trial for trial in trials if trial["validation"] is not None and trial["validation"]["rule"] is not None]
    first = min(within, key=order, default=None)
    return first if first is not None and order(first)[0] < baseline["rule"]["cost"] - 1e-12 else None


def three(value: float) -> float:
    """To three digits: a command that people can read repeats the trial exactly."""
    return float(f"{value:.3g}")


# -- the recommendation ----------------------------------------------------------------------------


def recommend(search: Search, baseline: Record, leader: Record | None, trials: int, out: Path) -> Record:
    """The leading trial's model, if it still leads as it is saved, or the baseline; now the test part is looked at."""
    given = (search.bundle, search.splits, search.costs, search.method)
    device, options, points = device_of(search.start), search.options | {"epochs": 0}, search.budget
    chosen, trial = fine_tune(*given, options, budget=points, device=device), None
    if leader is not None:
        # the accuracy that this model may still lose; half a sample more, so that rounding does no harm
        left = min(float(f"{100 * (leader['validation']['spare'] + 0.5) / len(search.before.labels):g}"), 100.0)
        tried = search.options | leader["parameters"]
        tuned = fine_tune(*given, tried, budget=left, device=device, checkpoints=out)
        for table, name in (("rows", "before + rule"), ("rules", "before")):  # untrained, it may lose the whole budget
            tuned.record[table][name] = chosen.record[table][name]
        tuned.record["budget"] = search.budget
        tuned.record["recommended"] = recommended(tuned.record)
        if tuned.record["recommended"].startswith("after"):
            chosen, trial, options, points = tuned, leader["number"], tried, left
    chosen.record["trials"] = trials  # so many models were judged on the same validation samples
    save_fine_tuned(chosen, out / "model")
    before, after = (from_plain(chosen.record["rules"][name]) for name in ("before", "after"))
    scores = search.scores(chosen.model)
    saved = paid(search, search.start, argmax if trial is None else before) - paid(search, chosen.model, after)
    parts = {part: evaluations(chosen.record, part) for part in ("validation", "test")}
    return {
        "baseline": baseline | {"curve": curve(search.before, before)},
        "recommendation": {
            "trial": trial,
            "options": options,
            "budget": points,
            "decision": chosen.record["decision"],
            "validation": search.judge(scores) | {"needed_accuracy": search.needed / len(scores.labels)},
            "curve": curve(scores, after),
            "saved": {"test": float(saved.mean()), "interval": bootstrap_paid(saved, "weighted_error_rate")},
        },
        "rows": {row: {part: counted(e[theirs], part) for part, e in parts.items()} for row, theirs in ROWS.items()},
    }


def paid(search: Search, model: nn.Module, rule: Rule) -> NDArray[np.float64]:
    """[N]: what each decision on the test part costs."""
    scores = predict_logits(model, search.splits)
    return np.asarray(search.costs.values[scores.labels.numpy(), rule(scores.logits).numpy()])


def summary(e: Evaluation) -> Record:
    return {name: float(getattr(e, statistic)) for name, statistic in STATISTICS.items()}


def counted(e: Evaluation, part: str) -> Record:
    """Intervals for test alone: validation was chosen by, and they would say too much."""
    ends = {f"{name}_interval": e.interval(statistic) for name, statistic in STATISTICS.items()}
    return summary(e) | (ends if part == "test" else {}) | {"confusion": e.confusion.tolist()}


def curve(scores: Scores, rule: Any) -> Record:
    """Accuracy against cost over the rule's strengths, each point once."""
    found = frontier(*scores, rule)
    moves = np.append(True, (np.diff(found.accuracy) != 0) | (np.diff(found.weighted_error_rate) != 0))
    return dict(zip(("strength", *STATISTICS), (values[moves].tolist() for values in found), strict=True))


def verdict(record: Record) -> str:
    """One sentence: what to use, and what speaks for it."""
    rows, advice = record["rows"], record["recommendation"]

    def costs(row: str) -> str:
        on = rows[row]["validation"]
        return f"{100 * on['cost']:.2f} per 100 at {100 * on['accuracy']:.2f} % accuracy"

    low, high = (100 * end for end in advice["saved"]["interval"])
    doubt = "" if low > 0 else ", so there it costs more" if high < 0 else ", which may be chance"
    saves = f"saves {100 * advice['saved']['test']:.2f} per 100 (95 %: {low:.2f} to {high:.2f})"
    if advice["trial"] is not None:
        ruled = "with its decision rule" if advice["decision"]["strength"] > 0 else "as it is"
        return (
            f"Use the model of trial {advice['trial']} {ruled}: on validation it costs {costs(RECOMMENDED)}, your model "
            f"{costs(BASELINE)}, and with the decision rule alone {costs(RULED)}; on the test part it {saves} against the "
            f"rule alone{doubt}."
        )
    points = f"{record['budget']:g} point{'s' * (record['budget'] != 1)} of accuracy"
    nothing = f"Nothing qualifies: none of {len(record['trials'])} trials is cheaper within {points}; keep your model"
    if advice["decision"]["strength"] == 0:
        return f"{nothing} as it is, for the decision rule saves nothing either: {costs(BASELINE)} on validation."
    return (
        f"{nothing} with the decision rule, which costs {costs(RULED)} on validation, without it {costs(BASELINE)}; on the "
        f"test part the rule {saves}{doubt}."
    )


def fit_command(record: Record, bundle: Path, data: str, costs: str, *more: str) -> str:
    """The command that makes the recommended model again."""
    advice, flags = record["recommendation"], ("epochs", "lr", "batch_size", "seed")
    words = ["csada", "fit", str(bundle), data, "--costs", costs, "--budget", f"{advice['budget']:g}", *more]
    if advice["trial"] is None:
        return shlex.join([*words, "--epochs", "0"])
    words += ["--method", record["method"]]
    for name, value in advice["options"].items():
        plain = value if isinstance(value, str) else json.dumps(value)
        words += [f"--{name.replace('_', '-')}", plain] if name in flags else ["--set", f"{name}={plain}"]
    return shlex.join(words)
