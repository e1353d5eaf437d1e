"""The paper: its toy, its tables and figures, and what goes beyond them on public data."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from csada.cli import common as cli
from csada.errors import InputError, RunError


@cli.app.command()
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
    from csada.paper.toy import METHOD, panels, run_toy
    from csada.paper.toy_figure import toy_figure
    from csada.report.style import save

    runs = []
    with cli.progress("training") as update:
        for seed in range(seeds):
            runs.append(run_toy(seed, spread))
            update(seed + 1, seeds)
    shown = next((i for i, run in enumerate(runs) if run.critical_errors()[0]), 0)
    figure = toy_figure(*panels(runs[shown]), runs[shown].splits.classes, METHOD.epsilon)
    files = save(figure, out / "toy.png")
    table = Table("", "before", "after", title=f"toy, spread {spread:g}, mean over {seeds} seed{'s' * (seeds > 1)}")
    counts = [run.critical_errors() for run in runs]
    table.add_row("critical errors, green called blue", *(f"{sum(c) / seeds:.2f}" for c in zip(*counts, strict=True)))
    accuracies = [(100 * run.before.accuracy, 100 * run.after.accuracy) for run in runs]
    table.add_row("accuracy (%)", *(f"{sum(a) / seeds:.2f}" for a in zip(*accuracies, strict=True)))
    cli.console.print(table)
    cli.console.print(f"The figure shows seed {shown}.")
    cli.show_files(files)


@cli.app.command()
def demo(
    out: cli.OutDir = Path("out"),
    seeds: Annotated[int, typer.Option(min=2, help="How many times, each with its own split and start.")] = 8,
) -> None:
    """Handwritten digits as doses: four answers to costly mistakes, compared. No download, about half a minute.

    Example: csada demo --seeds 4
    """
    from csada.metrics import mean_interval
    from csada.paper.demo import COSTS, REASONS, run_demo, summarise
    from csada.paper.demo_figure import demo_figure
    from csada.report.style import save

    cli.console.print("What the mistakes cost (every other one costs 1):")
    for (truth, predicted), (cost, why) in REASONS.items():
        cli.console.print(f"  {truth} read as {predicted}: {cost:>2}  {why}", highlight=False)
    runs = []
    with cli.progress("training") as update:
        for run in run_demo(seeds):
            runs.append(run)
            update(len(runs), seeds)
    rows = summarise(runs)
    top = [(COSTS.classes[y], COSTS.classes[z]) for y, z in COSTS.top_pairs(3)]
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    for heading in ("accuracy (%)", "cost per 100", *(f"{y} as {z}" for y, z in top), f"all {len(REASONS)}"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        means = [str(mean_interval(100 * values)) for values in (row.accuracy, row.weighted_error_rate)]
        pairs = [str(row.critical[pair].errors) for pair in top]
        table.add_row(name, *means, *pairs, str(sum(p.errors for p in row.critical.values())))
    fitted = 100 * sum(run.training_accuracy for run in runs) / len(runs)
    cli.console.print(
        f"\nThe baseline gets {fitted:.1f} % of its training data right: there is no training error to re-weigh."
    )
    cli.console.print(table)
    samples = rows["baseline"].critical[top[0]].samples
    cli.console.print(
        f"Mean ± half of the 95 % interval over {seeds} seeds. On the right, errors of all seeds together: on the dearest "
        f"pairs (of {samples} test samples of a {top[0][0]}), and on all {len(REASONS)} above.\n"
        "The rule predicts the class of least expected cost, with probabilities calibrated on validation data."
    )
    figure = demo_figure(*({n: getattr(r, k) for n, r in rows.items()} for k in ("weighted_error_rate", "accuracy")))
    cli.show_files(save(figure, out / "demo.png"))


@cli.app.command()
def tabular(
    out: Annotated[Path, typer.Option("--out", help="The record to write.")] = Path("out/tabular.json"),
    seeds: Annotated[int, typer.Option(min=2, help="How many splits, each with its own baseline.")] = 10,
) -> None:
    """Every method and the classical rivals on breast-cancer and wine data with asymmetric costs; some minutes.

    Example: csada tabular --seeds 3
    """
    from csada.paper import tabular as experiment
    from csada.reading import write_json

    with cli.progress("training") as update:
        record = experiment.run(seeds, update)
    for name in record["datasets"]:
        table = Table(title=f"{name}, mean over {seeds} seeds, cheapest first", box=SIMPLE)
        for heading in ("method", "cost", "against baseline (se)", "accuracy (%)"):
            table.add_column(heading)
        for line in experiment.summary(record, name):
            difference = f"{line['difference']:+.3f} ({line['difference_se']:.3f})"
            table.add_row(line["method"], f"{line['cost']:.3f}", difference, f"{100 * line['accuracy']:.2f}")
        cli.console.print(table)
    cli.show_files([write_json(out, record)])


@cli.app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="One of --list, all (the shortest first), or a TOML file of yours.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke, fast, chosen (on validation), paper, or script (the authors').")
    ] = "fast",
    show: Annotated[bool, typer.Option("--list", help="What there is, how far it is, how long it takes.")] = False,
    runs: Annotated[Path, typer.Option(help="Folder of the runs; an interrupted one is continued there.")] = Path(
        "runs"
    ),
    results: Annotated[Path, typer.Option(help="Folder of the records; what they hold is not run again.")] = Path(
        "results"
    ),
    data: Annotated[str | None, typer.Option(help="Another data set, such as pmi for the photographs.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lie.")] = None,
    all_pairs: Annotated[bool, typer.Option(help="Every pair of classes, not only the chosen ones.")] = False,
    methods: Annotated[str | None, typer.Option(help="Only these methods: csada,sosr.")] = None,
    matrices: Annotated[int | None, typer.Option(min=1, help="Only the first cost matrices.")] = None,
    replications: Annotated[int | None, typer.Option(min=1, help="Only the first replications.")] = None,
    limit_minutes: Annotated[float | None, typer.Option(help="Start no further run after this time.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes at once; with several GPUs they share these.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="The list as JSON.")] = False,
) -> None:
    """Tables and figures of the paper: do the runs that are missing, write the record, draw from it.

    Example: csada reproduce failure-cifar10 --limit-minutes 30
    """
    from csada.paper import spec as specs
    from csada.paper.sweep import collect, plan_runs, run_experiment, write_record

    if show:
        table = Table("name", "data", "runs done", "left, about", "shows", box=SIMPLE)
        listed = []
        for each in specs.names():
            if specs.has_scale(each, scale):
                spec = specs.load_spec(each, scale, data)
                plan = plan_runs(spec, runs, results)
                total = len(plan.runs) or spec.count
                left = len(plan.missing()) if plan.runs else total
                table.add_row(each, spec.data, f"{total - left} of {total}", _duration(left * spec.seconds), spec.title)
                state = {"runs": total, "done": total - left, "seconds_left": left * spec.seconds}
                listed.append({"name": each, "data": spec.data, **state, "shows": spec.title})
        if as_json:
            typer.echo(json.dumps(listed, indent=1))
            return
        cli.console.print(table)
        cli.console.print("Time: a rough guess for one H200 GPU (smoke: a CPU), without the baselines.", soft_wrap=True)
        return
    if name is None:
        raise InputError("name an experiment, or all; csada reproduce --list shows them")
    names = [each for each in specs.names() if specs.has_scale(each, scale)] if name == "all" else [name]
    chosen = sorted((specs.load_spec(each, scale, data) for each in names), key=lambda s: s.count * s.seconds)
    only = specs.Selection(methods.split(",") if methods else None, matrices, replications)
    deadline = None if limit_minutes is None else time.monotonic() + 60 * limit_minutes
    failed = 0
    for spec in chosen:
        with cli.progress(spec.name) as update:
            report = run_experiment(
                spec,
                runs,
                results_dir=results,
                data_dir=data_dir,
                all_pairs=all_pairs,
                only=only,
                workers=workers,
                limit_minutes=None if deadline is None else (deadline - time.monotonic()) / 60,
                on_progress=update,
            )
        record = collect(spec, runs, results)
        cli.console.print(
            f"{spec.name}, {scale}: {len(report.done)} done now, {len(report.skipped)} before, "
            f"{len(report.left)} left, {len(report.failed)} failed",
            highlight=False,
        )
        for run, reason in report.failed.items():
            cli.warn(f"  failed: {run}: {reason}", style="red")
        failed += len(report.failed)
        if record["runs"]:
            files = [write_record(results / f"{spec.record}.json", record)]
            if spec.name in specs.names():  # the paper's; what an experiment of yours shows is up to you
                from csada.paper.reproduction import render

                files += render(record, results / spec.record if spec.variant else results)
            cli.show_files(files)
    if failed:
        raise RunError(f"{failed} run{'s' * (failed > 1)} failed, named above; the same command tries again")


ResultsDir = Annotated[Path, typer.Option("--results", help="Folder of records.")]


@cli.app.command("tables")
def write_tables(results: ResultsDir = Path("results"), out: cli.OutDir = Path("results")) -> None:
    """The paper's tables from the records, ours beside the paper's: Markdown, CSV and LaTeX.

    Example: csada tables --results results --out out/tables
    """
    from csada.paper import record as records
    from csada.paper import reproduction

    for record in records.read_records(results):
        cli.show_files(reproduction.write_tables(record, out))


@cli.app.command("figures")
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
