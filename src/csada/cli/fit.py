"""From a model and costs to a classifier that avoids the expensive mistakes: fit, tune."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from csada.cli import common as cli

if TYPE_CHECKING:
    from csada.workflow.tune import Tuning

Budget = Annotated[
    float, Option(min=0, max=100, help="Accuracy budget: points that may be lost on validation; 100: any.")
]
Method = Annotated[str, Option(help="The method, such as csada, cost_weighted or sosr.")]
REFER = "Share of cases that may be left to a person, at most; by default any if that has a cost, else none."
Refer = Annotated[float | None, Option(min=0, max=1, help=REFER)]
LIMITS = "A file of limits, such as limits.toml: the cheapest rule that keeps them, in place of the budget."
LimitsFile = Annotated[Path | None, Option("--limits", help=LIMITS)]
SET = "Any option of fit or of the method; repeatable."
BatchSize = Annotated[int | None, Option(min=1, help="By default 64 to 512, at most an eighth of the samples.")]


@cli.command("fit")
def fit_command(
    model: cli.Model,
    data: cli.DataSet,
    costs: cli.Costs,
    out: cli.OutDir = Path("out/fitted"),
    method: Annotated[str, Option(help="auto, or one method, such as csada, cost_weighted or sosr.")] = "auto",
    members: Annotated[int, Option(min=1, help="auto: networks to average, at most.")] = 3,
    views: Annotated[str | None, Option(help="auto: identity,mirror,...; by default what training showed.")] = None,
    single: Annotated[bool, Option("--single", help="auto: one network that learns from the chosen ones.")] = False,
    limit: Annotated[
        str | None, Option("--time", metavar="10m", help="auto: no training that would end later.")
    ] = None,
    epochs: Annotated[
        int | None, Option(min=0, help="Of each training; by default what suits it. 0: no training, only the rule.")
    ] = None,
    lr: Annotated[float | None, Option(help="Of one method: 0.001 for cnn and mlp, less for ResNets.")] = None,
    batch_size: BatchSize = None,
    budget: Budget = 0.5,
    refer: Refer = None,
    priors: Annotated[
        Path | None, Option(metavar="FILE", help="Class frequencies in deployment: a CSV of class,frequency.")
    ] = None,
    referral_cost: Annotated[
        float | None, Option(help="What leaving a case to a person costs, instead of what the costs say.")
    ] = None,
    limits: LimitsFile = None,
    seed: int = 0,
    engines: cli.Engines = cli.HERE,
    devices: Annotated[int, Option(min=1, help="Of one method: processes, on as many GPUs, or on the CPU.")] = 1,
    options: Annotated[list[str] | None, Option("--set", metavar="NAME=VALUE", help=SET)] = None,
    reading: cli.Judging = cli.AS_IT_IS,
    flip: cli.Flip = False,
    track: cli.Track = None,
    as_json: cli.AsJson = False,
) -> None:
    """Improve a model, give it a decision rule, and save what costs least on validation.

    By default (auto) a few networks are trained from the model and averaged with it, unless another choice among them
    clearly costs less on validation. With --method, the model is trained further by that method. The rows compared are the
    model before and after, each by its most probable class and with its rule. Interrupted? Run the same command again: it
    resumes.

    With --priors nothing is trained unless --epochs says so: the rule is re-weighted to the class frequencies in deployment.
    A model that is made from a fitted one, or for other frequencies, is a new version: CHANGES.md in its folder says what
    changed.

    Example: csada fit out/digits digits --costs pareto:0 --out out/fitted
    """
    from csada.costs import CostMatrix
    from csada.decisions import Limits
    from csada.errors import InputError
    from csada.folders import OWN, reserved
    from csada.report.card import limit_lines, verdict
    from csada.tracking import tracked
    from csada.workflow.auto import auto
    from csada.workflow.features import is_featured, lifted, lowered
    from csada.workflow.fit import improve
    from csada.workflow.project import parse_options
    from csada.workflow.settings import costs_for
    from csada.workflow.versions import changes, frequencies_of, read_priors, reweighted

    if priors is not None and out.resolve() == model.resolve():
        raise InputError(f"--priors writes a new version: give another folder than {model} with --out")
    start = reading.opened(model)
    deployment = None if priors is None else read_priors(priors, start.classes)
    if priors is not None and method == "auto" and epochs is None:
        method, epochs = "cross_entropy", 0  # the rule alone
    given = {"epochs": epochs, "lr": lr, "batch_size": batch_size, "devices": devices if devices > 1 else None}
    settings = {name: value for name, value in given.items() if value is not None} | parse_options(options or [])
    own = {"members": members if members != 3 else None, "views": views, "single": single or None, "time": limit}
    own = {name: value for name, value in own.items() if value is not None} | engines.changed()
    if method == "auto":
        settings.pop("epochs", None)
    for name in settings if method == "auto" else own:
        which = "one method: add --method csada, say" if method == "auto" else "auto: leave out --method"
        raise InputError(f"--{name.replace('_', '-')} is for {which}, or leave it out")
    minutes = None if limit is None else minutes_of(limit)
    splits = reading.load(data, start, flip=flip)
    table = costs_for(costs, start.classes)
    if referral_cost is not None:
        table = CostMatrix(table.values, table.classes, referral_cost)
    given_model, backbone = start, None
    if is_featured(start):
        start, splits, backbone = lowered(start, splits)
    known = None if limits is None else Limits.read(limits)
    told = {"data": data, "start": str(model), "costs": costs, "method": method, "seed": seed, **settings}
    common: dict[str, Any] = {"budget": budget, "refer": refer, "limits": known, "seen": reading.seen}
    with (
        reserved(out) as folder,
        cli.progress("training") as update,
        tracked(track, told, lambda line, total: update(line["epoch"], total)) as on_epoch,
        engines.started(folder, OWN) as where,
    ):
        common |= {"checkpoints": folder, "on_epoch": on_epoch}
        if method == "auto":
            shown: Any = None if views is None else [name.strip() for name in views.split(",")]
            better = auto(
                start,
                splits,
                table,
                members=members,
                views=shown,
                single=single,
                epochs=epochs,
                minutes=minutes,
                seed=seed,
                engine=where,
                on_progress=update,
                **common,
            )
        else:
            better = improve(start, splits, table, method, {"seed": seed} | settings, **common)
        told_why = f"csada fit --costs {Path(costs).name}"
        if priors is not None and deployment is not None:
            better = reweighted(better, frequencies_of(start.adapt(splits)), deployment)
            told_why += f" --priors {priors.name}"
        if backbone is not None:
            start, better = given_model, lifted(better, backbone, given_model.input)
        version = None
        if deployment is not None or start.evidence is not None:
            version = changes(start, better, model, why=told_why, deployment=deployment)
        better.save(folder, version)
    if method == "csada" and start.training is not None and not start.training.interpolates:
        cli.warn(
            f"{model} does not fit its training data. CSADA is made for models that do: train it longer, train a larger "
            "model, or leave out --method."
        )
    evidence = better.evidence
    assert evidence is not None
    if as_json:
        found = {"folder": str(out), "options": evidence.options, "members": evidence.admissions}
        cli.show_json(found | cli.evidence_numbers(evidence))
        return
    cli.show_members(evidence)
    cli.show_rows(evidence)
    end = evidence.test[evidence.chosen]
    others = (
        "by rules that were fitted on the other samples (the budget counts them as saved), " if known is None else ""
    )
    cli.say(
        f"Accuracy in %, cost per 100 predictions; on validation {others}the cost half counted and half expected. Validation "
        "chose the row with *: it is what was saved."
    )
    cli.say(*(str(pair) for pair in end.top_pairs()))
    attacks = [pair for line in evidence.history for pair in line.attacks]
    if attacks and not any(pair.reached for pair in attacks):
        larger = 10 * float(evidence.options.get("step_size", 5e-4))  # the method's default
        cli.say(f"No attack reached its target. Try ten times the step size: --set step_size={larger:g}")
    cli.say(*limit_lines(evidence))
    cli.say(verdict(evidence))
    cli.show_files([out])
    cli.say(f"csada report {out} explains it on a page")


@cli.command()
def tune(
    model: cli.Model,
    data: cli.DataSet,
    costs: cli.Costs,
    budget: Budget = 0.5,
    trials: Annotated[int, Option(min=1, help="How many settings to try, including those of earlier runs.")] = 20,
    epochs: Annotated[int, Option(min=1, help="Epochs of each trial.")] = 5,
    method: Method = "csada",
    batch_size: BatchSize = None,
    timeout: Annotated[float | None, Option(min=0, help="Minutes after which no further trial starts.")] = None,
    seed: int = 0,
    engines: cli.Engines = cli.HERE,
    reading: cli.Judging = cli.AS_IT_IS,
    flip: cli.Flip = False,
    out: cli.OutDir = Path("out/tuned"),
    as_json: cli.AsJson = False,
) -> None:
    """Search settings that save cost within the accuracy budget. Interrupted? Run the same command again: it resumes.

    Example: csada tune out/digits digits --costs costs.csv --budget 0.5 --trials 20
    """
    from csada.reading import plain
    from csada.report.card import verdict
    from csada.report.style import save
    from csada.report.tuning import frontier_figure
    from csada.workflow import tune as workflow
    from csada.workflow.settings import costs_for

    start = reading.opened(model)
    splits = reading.load(data, start, flip=flip)
    with (
        cli.progress("training") as update,
        engines.started(out, workflow.TRIALS, workflow.SEARCH) as where,
    ):
        tuning, better = workflow.tune(
            start,
            splits,
            costs_for(costs, start.classes),
            out,
            method=method,
            budget=budget,
            trials=trials,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            minutes=timeout,
            seen=reading.seen,
            engine=where,
            on_progress=update,
        )
    evidence = better.evidence
    assert evidence is not None
    judged = [trial.validation for trial in tuning.trials if trial.validation is not None]
    title = f"{method}, {len(judged)} of {len(tuning.trials)} trials finished"
    points = {
        "trials by argmax": [(j.argmax.accuracy, j.argmax.mean_cost) for j in judged if j.rule],
        "trials over the budget": [(j.argmax.accuracy, j.argmax.mean_cost) for j in judged if not j.rule],
        "trials with their rule": [(j.rule.accuracy, j.rule.mean_cost) for j in judged if j.rule],
    }
    files = save(frontier_figure(title, evidence, tuning.needed, points), out / "frontier.png")
    given = as_flags(reading.changed() | {"flip": flip})
    words = ["csada", "fit", str(model), data, "--costs", costs, "--budget", str(budget), *given]
    command = shlex.join([*words, *(("--epochs", "0") if tuning.leader is None else again(tuning))])
    if as_json:
        cli.show_json(plain(tuning) | {"command": command} | cli.evidence_numbers(evidence))
        return
    cli.show_rows(evidence)
    states = Counter(trial.state for trial in tuning.trials)
    left = trials - len(tuning.trials)
    cli.say(
        f"Accuracy in %, cost per 100 predictions. {len(tuning.trials)} trials: "
        + (", ".join(f"{count} {state}" for state, count in states.items()) or "none")
        + (f"; {left} left: run the same command again." if left > 0 else "."),
        f"All were judged on the same {evidence.samples['validation']:,} validation samples, so the best "
        f"of them looks better there than it is. The {evidence.samples['test']:,} test samples were used for "
        "this table alone.",
    )
    if tuning.leader is None:
        cli.say(f"No trial is cheaper than the rule alone within {budget:g} points of accuracy.")
    cli.show_files([out / "tuning.json", *files, out / "model"])
    cli.say(verdict(evidence), f"The same model again: {command}")


def minutes_of(text: str) -> float:
    """10m, 90s, 1.5h; a bare number is minutes."""
    from csada.errors import InputError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise InputError(f"--time {text!r} is no time; write 10m, 90s or 1.5h")
    return float(found[1]) * {"s": 1 / 60, "m": 1.0, "h": 60.0, "": 1.0}[found[2]]


def as_flags(values: dict[str, Any]) -> list[str]:
    """Of those that are given; True is a flag alone."""
    found = ((f"--{name.replace('_', '-')}", value) for name, value in values.items())
    words = ((name, value) for name, value in found if value is not None and value is not False)
    return [word for name, value in words for word in ((name,) if value is True else (name, str(value)))]


def again(tuning: Tuning) -> list[str]:
    """The flags of `csada fit` that make the chosen model again."""
    flags = {name: value for name, value in tuning.chosen.items() if name in ("epochs", "lr", "batch_size", "seed")}
    words = as_flags({"method": tuning.method, **flags})
    for name, value in tuning.chosen.items():
        if name not in flags:
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words
