"""The paper: its toy, its tables and figures, and what goes beyond them on public data."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from csada.cli import common as cli
from csada.errors import InputError, RunError, check_known
from csada.files import probe, replaceable


@cli.command()
def toy(
    out: cli.OutDir = Path("out"),
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds; the figure shows the first with a critical error.")
    ] = 4,
    spread: Annotated[float, typer.Option(help="Factor on the standard deviations; 1 is as printed.")] = 2.0,
) -> None:
    """The toy of the paper's section 4, and its figure of six panels.

    Example: csada toy --out out --seeds 20
    """
    from csada.paper.toy import BLUE, GREEN, METHOD, panels, run_toy
    from csada.paper.toy_figure import toy_figure
    from csada.report.style import save

    probe(out)
    toys = []
    with cli.progress("training") as update:
        for seed in range(seeds):
            toys.append(run_toy(seed, spread))
            update(seed + 1, seeds)
    # by seed, before and after
    numbers = [[(e.pair_error(GREEN, BLUE).errors, 100 * e.accuracy) for e in toy.evaluations()] for toy in toys]
    shown = next((seed for seed, (before, _) in enumerate(numbers) if before[0]), 0)
    figure = toy_figure(*panels(toys[shown]), toys[shown].splits.classes, METHOD.epsilon)
    cli.say(f"toy, spread {spread:g}, mean over {seeds} seed{'s' * (seeds > 1)}; the figure shows seed {shown}")
    rows = []
    for i, name in enumerate(("critical errors, green labelled as blue", "accuracy (%)")):
        rows.append((name, *(f"{sum(own[when][i] for own in numbers) / seeds:.2f}" for when in (0, 1))))
    cli.show_table(("before", "after"), rows)
    cli.show_files(save(figure, out / "toy.png"))


@cli.command()
def demo(
    out: cli.OutDir = Path("out"),
    seeds: Annotated[int, typer.Option(min=2, help="How many times, each with its own split and start.")] = 8,
) -> None:
    """Handwritten digits as doses: four answers to costly mistakes, compared. No download, about half a minute.

    Example: csada demo --seeds 4
    """
    import numpy as np

    from csada.metrics import Evaluation, mean_interval
    from csada.paper.demo import COSTS, REASONS, ROWS, run_demo
    from csada.paper.figures import demo_figure
    from csada.report.style import save

    probe(out)
    cli.say("What the mistakes cost (every other one costs 1):")
    cli.say(
        *(f"  {truth} read as {predicted}: {cost:>2}  {why}" for (truth, predicted), (cost, why) in REASONS.items())
    )
    runs = []
    with cli.progress("training") as update:
        for run in run_demo(seeds):
            runs.append(run)
            update(len(runs), seeds)
    by_row = {name: [run.rows[name] for run in runs] for name in ROWS}
    top = [(COSTS.classes[y], COSTS.classes[z]) for y, z in COSTS.top_pairs(3)]
    rows = []
    for name, own in by_row.items():
        means = [str(mean_interval([100 * getattr(e, key) for e in own])) for key in ("accuracy", "mean_cost")]
        together = Evaluation(np.sum([e.confusion for e in own], axis=0), COSTS)
        errors = [together.pair_error(*pair).errors for pair in top]
        rows.append((name, *means, *map(str, errors), str(sum(together.pair_error(*pair).errors for pair in REASONS))))
    fitted = 100 * sum(run.training_accuracy for run in runs) / len(runs)
    cli.say(f"\nThe baseline gets {fitted:.1f} % of its training data right: there is no training error to re-weigh.")
    cli.show_table(
        ("accuracy (%)", "cost per 100\npredictions", *(f"{y} as {z}" for y, z in top), f"all {len(REASONS)}"), rows
    )
    samples = together.pair_error(*top[0]).samples
    cli.say(
        f"Mean ± half of the 95 % interval over {seeds} seeds. On the right, errors of all seeds together: on the costliest "
        f"pairs (of {samples} test samples of a {top[0][0]}), and on all {len(REASONS)} above.",
        "The rule predicts the class of least expected cost, with probabilities calibrated on validation data.",
    )
    cli.show_files(save(demo_figure(by_row), out / "demo.png"))


@cli.command()
def tabular(
    out: Annotated[Path, typer.Option("--out", help="The record to write.")] = Path("out/tabular.json"),
    seeds: Annotated[int, typer.Option(min=2, help="How many splits, each with its own baseline.")] = 10,
    force: cli.Force = False,
) -> None:
    """Every method and the classical rivals on breast-cancer and wine data with asymmetric costs; some minutes.

    Example: csada tabular --seeds 3
    """
    from csada.paper import tabular as experiment
    from csada.reading import write_json

    probe(replaceable(out, "record", force=force).parent)
    with cli.progress("training") as update:
        record = experiment.run(seeds, update)
    for name in record["datasets"]:
        cli.say(f"{name}, mean over {seeds} seeds, cheapest first")
        rows: list[tuple[str, ...]] = []
        for line in experiment.summary(record, name):
            difference = f"{line.difference:+.3f} ({line.difference_se:.3f})"
            rows.append((line.method, f"{line.cost:.3f}", difference, f"{100 * line.accuracy:.2f}"))
        cli.show_table(("cost", "against baseline (se)", "accuracy (%)"), rows)
    cli.show_files([write_json(out, record)])


@cli.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="One of --list, all (the shortest first), or your own TOML file.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke, fast, chosen (on validation), paper, or script (the authors').")
    ] = "fast",
    show: Annotated[
        bool, typer.Option("--list", help="List the experiments: what is done, and how long the rest takes.")
    ] = False,
    runs: cli.RunsDir = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder of the records; what they hold is not run again.")] = Path(
        "results"
    ),
    data: Annotated[str | None, typer.Option(help="Another data set, such as pmi for the photographs.")] = None,
    data_dir: cli.DataDir = None,
    all_pairs: Annotated[bool, typer.Option(help="Every pair of classes, not only the chosen ones.")] = False,
    methods: Annotated[str | None, typer.Option(help="Only these methods: csada,sosr.")] = None,
    matrices: Annotated[int | None, typer.Option(min=1, help="Only the first cost matrices.")] = None,
    replications: Annotated[int | None, typer.Option(min=1, help="Only the first replications.")] = None,
    limit_minutes: Annotated[float | None, typer.Option(help="Start no further run after this time.")] = None,
    baselines: Annotated[
        Path | None, typer.Option(help="Folder of baselines, in small files, that go from machine to machine.")
    ] = None,
    engines: cli.Engines = cli.HERE,
    as_json: Annotated[bool, typer.Option("--json", help="The list as JSON.")] = False,
) -> None:
    """Tables and figures of the paper: do the runs that are missing, write the record, draw from it.

    Example: csada reproduce failure-cifar10 --limit-minutes 30
    """
    from csada.paper import EXPERIMENTS
    from csada.paper.run import BASELINES
    from csada.paper.spec import Portion, has_scale, load_spec
    from csada.paper.sweep import collect, plan_runs, run_experiment, write_record

    if name is None and not show:
        raise InputError("name an experiment, or all; csada reproduce --list shows them")
    names = [each for each in EXPERIMENTS if has_scale(each, scale)] if name in (None, "all") else [str(name)]
    specs = [load_spec(each, scale, data) for each in names]
    only = Portion(methods.split(",") if methods else None, matrices, replications)
    if show:
        listed: list[dict[str, Any]] = []
        for spec in specs:
            plan = plan_runs(spec, runs, results, all_pairs, only=only)
            total = len(plan.runs) or spec.count  # before its baseline is there
            left = len(plan.missing()) if plan.runs else total
            state = {"runs": total, "done": total - left, "seconds_left": left * spec.seconds}
            listed.append({"name": spec.name, "data": spec.data, **state, "shows": spec.title})
        if as_json:
            typer.echo(json.dumps(listed, indent=1))
            return
        table = Table("name", "data", "runs done", "left, about", "shows", box=SIMPLE)
        for row in listed:
            done = f"{row['done']} of {row['runs']}"
            table.add_row(row["name"], row["data"], done, _duration(row["seconds_left"]), row["shows"])
        cli.console.print(table)
        cli.say("Time: a rough guess for one H200 GPU (smoke: a CPU), without the baselines.")
        return
    for folder in (results, runs):
        probe(folder)
    deadline = None if limit_minutes is None else time.monotonic() + 60 * limit_minutes
    failed = 0
    for spec in sorted(specs, key=lambda s: s.count * s.seconds):
        with (
            cli.progress(spec.name) as update,
            engines.started(runs, BASELINES, spec.folder) as where,
        ):
            report = run_experiment(
                spec,
                runs,
                results_dir=results,
                data_dir=data_dir,
                all_pairs=all_pairs,
                only=only,
                engine=where,
                carried=baselines,
                limit_minutes=None if deadline is None else (deadline - time.monotonic()) / 60,
                on_progress=update,
            )
        failed += len(report.failed)
        cli.say(
            f"{spec.name}, {scale}: {len(report.done)} done now, {len(report.skipped)} before, "
            f"{len(report.left)} left, {len(report.failed)} failed"
        )
        cli.warn(*(f"  failed: {run}: {reason}" for run, reason in report.failed.items()), style="red")
        record = collect(spec, runs, results)
        if record.runs:
            files = [write_record(results / f"{spec.record}.json", record)]
            if spec.name in EXPERIMENTS:  # the paper's; what an experiment of yours shows is up to you
                from csada.paper.record import parse
                from csada.paper.reproduction import render

                files += render(parse(record), results / spec.record if spec.variant else results)
            cli.show_files(files)
    if failed:
        raise RunError(f"{failed} run{'s' * (failed > 1)} failed, named above; the same command tries again")


@dataclass(frozen=True)
class Networks(cli.Engines):
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Networks at once, at most; by default one, with Ray all that fit. As many judge, or two."
        ),
    ] = None


@cli.command()
def study(
    names: Annotated[
        list[str] | None, typer.Argument(help="Data sets to train what is missing for; without one, only judge.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the data sets: what is trained, and what is judged.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of the libraries and of the record.")] = Path("results"),
    runs: cli.RunsDir = Path("runs"),
    minutes: Annotated[
        float | None, typer.Option("--time", min=0, help="Minutes of training: no network is begun after them.")
    ] = None,
    baselines: Annotated[int | None, typer.Option(min=1, help="How many baselines, if not the data set's own.")] = None,
    engines: Networks = Networks(),  # noqa: B008 - frozen
) -> None:
    """What views, restarts, mixup, selection and the rule are worth, on public data and many cost problems.

    First networks are trained from a baseline and their scores stored; then every choice is made on validation and judged on
    test, from these scores alone. Interrupted? Run the same command again: it resumes.

    Example: csada study digits --time 10
    """
    from csada.paper.grow import STUDY, extend
    from csada.paper.library import missing, planned, read_library
    from csada.paper.sources import SOURCES
    from csada.paper.study import judge, read_study, to_judge
    from csada.paper.study_report import render
    from csada.reading import write_json

    for name in names or ():
        check_known("data set", name, SOURCES)
    record = results / "study.json"
    found = read_study(record)
    if show:
        table = Table("data", "model", "networks", "trained", "judged", box=SIMPLE)
        for name, source in SOURCES.items():
            library = read_library(results, name)
            seconds = sum(each.seconds for each in library.about.networks.values()) if library else 0
            total, left = len(planned(name, baselines)), len(missing(name, library, baselines))
            grown = bool(to_judge(results, found, [name]))
            judged = "no" if name not in found.libraries else "an older library" if grown else "yes"
            table.add_row(name, source.model, f"{total - left} of {total}", _duration(seconds), judged)
        cli.console.print(table)
        return
    for folder in (results, runs) if names else (results,):
        probe(folder)
    deadline = math.inf if minutes is None else time.time() + 60 * minutes
    failed = []
    with engines.started(runs, STUDY) as where:
        for name in names or ():
            total = len(planned(name, baselines))
            with cli.progress(name) as update:
                more: dict[str, Any] = {"baselines": baselines, "deadline": deadline, "engine": where}
                try:
                    still = extend(name, results, runs, on_progress=update, **more)
                    cli.say(f"{name}: {total - len(still)} of {total} networks")
                except RunError as error:
                    failed.append(str(error))
    for name in to_judge(results, found, names or list(SOURCES)):
        library = read_library(results, name)
        if library is None or not library.seeds:
            continue
        with cli.progress(f"judging {name}") as update:
            found = judge(found, results, name, SOURCES[name], jobs=engines.workers or 2, on_progress=update)
        write_json(record, found)
    if not found.libraries:
        raise InputError(f"no library with a complete baseline in {results}; csada study NAME trains one")
    cli.show_files([record, *render(found, results)])
    if failed:
        raise RunError(failed[0])


ResultsDir = Annotated[Path, typer.Option("--results", help="Folder of records.")]


@cli.command("tables")
def write_tables(results: ResultsDir = Path("results"), out: cli.OutDir = Path("results")) -> None:
    """The paper's tables from the records, ours beside the paper's: Markdown, CSV and LaTeX.

    Example: csada tables --results results --out out/tables
    """
    from csada.paper import record as records
    from csada.paper import reproduction

    for record in records.read_records(results):
        cli.show_files(reproduction.write_tables(record, out))


@cli.command("figures")
def write_figures(results: ResultsDir = Path("results"), out: cli.OutDir = Path("results")) -> None:
    """The paper's figures from the records: PNG and SVG.

    Example: csada figures --results results --out out/figures
    """
    from csada.paper import record as records
    from csada.paper import reproduction

    for record in records.read_records(results):
        cli.show_files(reproduction.write_figures(record, out))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
