"""What a model gets wrong and what it costs: evaluate, compare, report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from csada.cli import common as cli
from csada.cli.fit import Budget
from csada.errors import InputError
from csada.files import replaceable


@cli.command()
def evaluate(
    model: cli.Model,
    data: cli.DataSet,
    costs: Annotated[str | None, Option(help="As for csada fit; else those the model was fitted with.")] = None,
    part: Annotated[
        str,
        Option(metavar="auto|test|validation|train|all", help="Of the data; auto: all where they are new, else test."),
    ] = "auto",
    decision: Annotated[str, Option(metavar="own|argmax|rule", help="rule: least expected cost, calibrated.")] = "own",
    reading: cli.Judging = cli.AS_IT_IS,
    scores: Annotated[Path | None, Option(help="Also write the scores of all samples: a CSV for csada decide.")] = None,
    force: cli.Force = False,
    as_json: cli.AsJson = False,
) -> None:
    """What a saved model gets wrong on data, old or new, and what it costs.

    Data that the model has never seen are judged as a whole, those it was trained on by their test part.
    It decides by its own rule, by the most probable class (argmax), or by the rule of least expected cost, calibrated on
    the data's validation part.

    Example: csada evaluate out/fitted new-photos
    """
    from csada.metrics import named_bound
    from csada.workflow.evaluate import judge, part_for
    from csada.workflow.scores import write_scores
    from csada.workflow.settings import costs_for

    replaceable(scores, "table of scores", force=force)
    classifier = reading.opened(model)
    if costs is None and classifier.costs is None:
        raise InputError(f"{model} was trained without costs; give --costs FILE, or --costs uniform")
    splits = reading.load(data, classifier)
    table = None if costs is None else costs_for(costs, classifier.classes)
    part, why = part_for(classifier, splits, decision) if part == "auto" else (part, "")
    e, told, known = judge(classifier, splits, table, part, decision, seen=reading.seen)
    if scores is not None:
        write_scores(classifier, splits, scores)
        cli.note(f"wrote {scores}")
    confused = e.most_confused(5)
    if as_json:
        found = {"model": str(model), "data": splits.name, "part": part, "decision": told, **cli.numbers(e)}
        found |= {"trained_on": known, "classes": list(e.costs.classes), "confusion": e.confusion.tolist()}
        pairs = {"costliest": e.top_pairs(5), "most_confused": confused}
        found |= {
            name: [
                p._asdict() | {"interval": p.bounds.named(), "at_most": named_bound(p.errors, p.samples)}
                for p in listed
            ]
            for name, listed in pairs.items()
        }
        cli.show_json(found)
        return
    if known:
        cli.warn(f"the model was trained on {known:,} of these {e.samples:,} samples: that flatters it")
    low, high = e.interval("mean_cost")
    judged = f"{part} ({why})" if why else part
    cli.say(
        f"{splits.name}, {judged}, by {told}: {e.samples:,} samples, accuracy {100 * e.accuracy:.2f} %, cost per "
        f"100 predictions {100 * e.mean_cost:.2f} (95 %: {100 * low:.2f} to {100 * high:.2f})",
        *filter(None, [e.referral]),
        "the costliest mistakes:",
        *(f"  {pair} at {pair.cost:.4g}" for pair in e.top_pairs(5)),
        "the most frequent mistakes:" if confused else "no mistakes",
        *(f"  {pair} at {pair.cost:.4g}" for pair in confused),
    )


@cli.command()
def compare(
    data: cli.DataSet,
    costs: cli.Costs,
    methods: Annotated[str | None, Option(help="Names separated by commas, or all.")] = None,
    seeds: Annotated[int, Option(min=1, help="How many baselines; the paired tests need three.")] = 3,
    model: Annotated[str | None, Option(help="As of csada train; by default what suits the data.")] = None,
    recipe: Annotated[str | None, Option(help="Recipe of the baseline; by default as csada train.")] = None,
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs of fine-tuning; some methods take five times as many.")
    ] = None,
    lr: Annotated[float | None, Option(help="Learning rate of fine-tuning, for every method.")] = None,
    baseline_epochs: Annotated[int | None, Option(min=1, help="Epochs of the baseline.")] = None,
    pretrained: Annotated[
        str | None, Option(help="Weights that each baseline starts from: a file, or hub:OWNER/NAME.")
    ] = None,
    budget: Budget = 0.5,
    reading: cli.Reading = cli.AS_IT_IS,
    trust: cli.Trust = False,
    engines: cli.Engines = cli.HERE,
    out: cli.OutDir = Path("out"),
    as_json: cli.AsJson = False,
) -> None:
    """Several methods, each from the same baselines, against the baseline and the training-free decision rule.

    Interrupted? Run the same command again: it resumes.

    Example: csada compare digits --costs pareto:0 --methods csada,sosr --seeds 5
    """
    from csada.costs import CostMatrix
    from csada.data import counts
    from csada.folders import occupied
    from csada.workflow import compare as workflow

    def announce(planned: workflow.Comparison) -> None:
        plan = planned.plan
        *_, height, width = (0, *plan.shape)
        what = f"images of {height} x {width} pixels" if len(plan.shape) == 3 else f"rows of {width} numbers"
        cli.note(
            f"{planned.data}: {what}, {plan.model}; {seeds} baseline{'s' * (seeds > 1)} and {len(plan.methods)} "
            f"method{'s' * (len(plan.methods) > 1)} on each: {seeds * (1 + len(plan.methods))} trainings, "
            f"{seeds * plan.epochs:,} epochs"
        )

    read = cli.given(label=reading.label, ignore=reading.ignore)
    counts(data, reading.data_dir, cli.note, **read)  # says what is odd about the data
    with occupied(out), cli.progress("training") as update, engines.started(out, workflow.FILE) as where:
        found = workflow.compare(
            data,
            costs,
            methods or workflow.SHOWN,
            seeds=seeds,
            model=model,
            epochs=epochs,
            lr=lr,
            recipe=recipe,
            baseline_epochs=baseline_epochs,
            pretrained=pretrained,
            scale=reading.scale,
            budget=budget,
            data_dir=reading.data_dir,
            out=out,
            trust=trust,
            engine=where,
            on_progress=update,
            on_start=announce,
            on_estimate=lambda s: cli.note(
                f"about {f'{s / 60:.0f} min' if s >= 90 else f'{s:.0f} s'} in all, at the pace of the first epoch"
            ),
            **read,
            **cli.given(size=reading.size, skip_bad=reading.skip_bad),
        )
    if as_json:
        cli.show_json(found)
        return
    names, table = found.classes, CostMatrix(found.costs, found.classes)
    pairs = table.critical_pairs()
    lines: list[tuple[str, ...]] = []
    for line in found.summary:
        critical = _mean_sd(line.critical_errors) if pairs else "-"
        means, tests = (_mean_sd(line.accuracy, 100), _mean_sd(line.cost, 100)), map(_p, (line.p_baseline, line.p_rule))
        lines.append((line.row, line.diverged) if line.diverged else (line.row, *means, critical, *tests))
    cli.show_table(
        ("accuracy\n(%)", "cost per 100\npredictions", "critical\nerrors", "p,\nbaseline", "p,\nits rule"), lines
    )
    critical = ", ".join(f"{names[y]} as {names[z]} ({table[y, z]:.3g})" for y, z in pairs)
    cli.say(
        f"{found.data}, {found.plan.model}, {found.samples['test']:,} test samples; mean (sd) over {seeds} "
        f"seed{'s' * (seeds > 1)}. The rule may lose {budget:g} points of the baseline's accuracy on validation.",
        f"Critical errors are those on the costliest pairs: {critical}." if pairs else "All mistakes cost the same.",
        "p: paired t test on cost over the seeds, two-sided, not corrected for the number of methods; seeds share "
        "their data, so p is smaller than it should be."
        if seeds > 2
        else "No paired tests: they need at least 3 seeds.",
    )
    cli.show_files([out / workflow.FILE])


@cli.command()
def report(
    folder: Annotated[Path, Argument(help="A folder written by `csada fit`.")],
    out: Annotated[Path | None, Option(help="The file to write; by default report.html in the folder.")] = None,
    force: cli.Force = False,
    as_json: cli.AsJson = False,
) -> None:
    """Write one HTML file that shows what was trained, what its mistakes cost before and after, and how sure that is.

    It is one file without links: you can send it by mail and open it in any browser.

    Example: csada report out/fitted --out report.html
    """
    from csada.classifier import deployed
    from csada.report.page import page
    from csada.workflow.check import latest

    if (evidence := deployed(folder).evidence) is None:
        raise InputError(
            f"{folder} was trained but not fitted to costs; run csada fit, then csada report on its folder"
        )
    target, shown = out or folder / "report.html", folder.name if folder.is_absolute() else str(folder)
    replaceable(target, "page", force=force)
    cli.write(target, page(evidence, shown, latest(folder)))
    if as_json:
        cli.show_json({"report": str(target)} | cli.evidence_numbers(evidence))
    else:
        cli.show_files([target])


def _p(p: float | None) -> str:
    return "-" if p is None else f"{p:.3f}" if p >= 0.001 else "<0.001"


def _mean_sd(found: tuple[float, float | None] | None, factor: float = 1) -> str:
    mean, sd = found or (math.nan, None)
    return f"{factor * mean:.2f}" + ("" if sd is None else f" ({factor * sd:.2f})")
