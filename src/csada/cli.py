"""The command line: the only place that prints and draws progress bars. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from csada.errors import InputError, RunError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Classifiers for when some mistakes cost more than others.",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: show what they hold, download public ones.")
app.add_typer(data_app, name="data")
console = Console()
errors = Console(stderr=True)

OutDir = Annotated[Path, typer.Option("--out", help="Folder for what is written.")]


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar fed by `update(done, total)`; nothing is drawn when the output is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command()
def toy(
    out: OutDir = Path("out"),
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds; the figure shows the first with a critical error.")
    ] = 4,
    spread: Annotated[float, typer.Option(help="Factor on the standard deviations; 1 is as printed.")] = 2.0,
) -> None:
    """The toy of the paper's section 4, and its figure of six panels.

    Example: csada toy --out out --seeds 20
    """
    from csada.experiments.toy import METHOD, panels, run_toy
    from csada.report.style import save
    from csada.report.toy import toy_figure

    runs = []
    with progress("training") as update:
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
    console.print(table)
    console.print(f"The figure shows seed {shown}.")
    _show_files(files)


@app.command()
def demo(
    out: OutDir = Path("out"),
    seeds: Annotated[int, typer.Option(min=2, help="How many times, each with its own split and start.")] = 8,
) -> None:
    """Handwritten digits as doses: four answers to costly mistakes, compared. No download, about half a minute.

    Example: csada demo --seeds 4
    """
    from csada.experiments.demo import COSTS, REASONS, run_demo, summarise
    from csada.metrics import mean_interval
    from csada.report.demo import demo_figure
    from csada.report.style import save

    console.print("What the mistakes cost (every other one costs 1):")
    for (truth, predicted), (cost, why) in REASONS.items():
        console.print(f"  {truth} read as {predicted}: {cost:>2}  {why}", highlight=False)
    runs = []
    with progress("training") as update:
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
    console.print(
        f"\nThe baseline gets {fitted:.1f} % of its training data right: there is no training error to re-weigh."
    )
    console.print(table)
    samples = rows["baseline"].critical[top[0]].samples
    console.print(
        f"Mean ± half of the 95 % interval over {seeds} seeds. On the right, errors of all seeds together: on the dearest "
        f"pairs (of {samples} test samples of a {top[0][0]}), and on all {len(REASONS)} above.\n"
        "The rule predicts the class of least expected cost, with probabilities calibrated on validation data."
    )
    figure = demo_figure(*({n: getattr(r, k) for n, r in rows.items()} for k in ("weighted_error_rate", "accuracy")))
    _show_files(save(figure, out / "demo.png"))


@app.command()
def compare(
    data: Annotated[str, typer.Argument(help="cifar10, digits, mnist, pills, pmi, toy, or a folder or CSV file.")],
    costs: Annotated[str, typer.Option(help="A CSV file by class name; or uniform, pareto:SEED, pmi.")],
    methods: Annotated[str | None, typer.Option(help="Names with commas between, or all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many baselines; the paired tests need three.")] = 3,
    model: Annotated[str | None, typer.Option(help="mlp, cnn, resnet9 or resnet34; else by the data.")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of fine-tuning; some methods take five times as many.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of fine-tuning, for every method.")] = None,
    baseline_epochs: Annotated[int | None, typer.Option(min=1, help="Of the baseline.")] = None,
    scale: Annotated[float, typer.Option(help="The fraction of the data to use.")] = 1.0,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lie.")] = None,
    out: OutDir = Path("out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Several methods, each from the same baselines, against the baseline and the training-free decision rule.

    Example: csada compare digits --costs pareto:0 --methods csada,sosr --seeds 5
    """
    from csada.costs import CostMatrix
    from csada.experiments import compare as experiment
    from csada.experiments.records import write_json

    file = out / "compare.json"
    with progress("training") as update:
        record = experiment.compare(
            data,
            costs,
            methods or experiment.SHOWN,
            seeds=seeds,
            model=model,
            epochs=epochs,
            lr=lr,
            baseline_epochs=baseline_epochs,
            scale=scale,
            data_dir=data_dir,
            on_progress=update,
            on_seed=lambda record: write_json(file, record),
        )
    if as_json:
        typer.echo(json.dumps(record, indent=1))
        return
    pairs = experiment.critical_pairs(CostMatrix(record["costs"], record["classes"]))
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    for heading in ("accuracy (%)", "cost per 100", "critical errors", "p, baseline", "p, its rule"):
        table.add_column(heading)
    for line in record["summary"]:
        if "diverged" in line:
            table.add_row(line["row"], line["diverged"])
            continue
        critical = _mean_sd(line["critical_errors"]) if pairs else "-"
        p_values = (_p_value(line[key]) for key in ("p_baseline", "p_rule"))
        table.add_row(line["row"], _mean_sd(line["accuracy"], 100), _mean_sd(line["cost"], 100), critical, *p_values)
    console.print(table)
    names = record["classes"]
    critical = ", ".join(f"{names[y]} as {names[z]} ({record['costs'][y][z]:.3g})" for y, z in pairs)
    notes = [
        f"{record['data']['name']}, {record['model']['name']}, {record['data']['samples']['test']:,} test samples; "
        f"mean (sd) over {seeds} seed{'s' * (seeds > 1)}.",
        f"Critical errors are those on the dearest pairs: {critical}." if pairs else "All mistakes cost the same.",
        "p: paired t test on cost over the seeds, two-sided, not corrected for the number of methods; seeds share "
        "their data, so p is smaller than it should be."
        if seeds > 2
        else "No paired tests: they need at least 3 seeds.",
    ]
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    _show_files([file])


@app.command("fit")
def fit_command(
    model: Annotated[Path, typer.Argument(help="A folder written by `csada train`, or by this command.")],
    data: Annotated[str, typer.Argument(help="A data set's name, a folder of images or a CSV file.")],
    costs: Annotated[str, typer.Option(help="A CSV file by class name; or uniform, pareto:SEED, pmi.")],
    out: OutDir = Path("out/fitted"),
    method: Annotated[str, typer.Option(help="Any of csada.METHODS.")] = "csada",
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    lr: float = 1e-4,
    batch_size: Annotated[int, typer.Option(min=1)] = 512,
    seed: int = 0,
    devices: Annotated[int, typer.Option(min=1, help="Processes, on as many GPUs, or on the CPU.")] = 1,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any option of fit or of the method; repeatable."),
    ] = None,
    scale: Annotated[float, typer.Option(help="The fraction of the data to use.")] = 1.0,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lie.")] = None,
) -> None:
    """Fine-tune a trained model with any method. Stopped half-way, the same command goes on.

    Example: csada fit out/digits digits --costs pareto:0 --lr 0.001 --batch-size 64 --set step_size=0.02
    """
    from csada.data import load
    from csada.experiments.compare import costs_for
    from csada.experiments.fine_tuning import fine_tune, parse_options, save_fine_tuned

    with progress("decoding") as update:
        splits = load(data, data_dir, scale, on_progress=update)
    table = costs_for(costs, splits.classes)
    settings = {"epochs": epochs, "lr": lr, "batch_size": batch_size, "seed": seed} | parse_options(options or [])
    checkpoint = out / "checkpoint.pt"
    with progress("training") as update:
        told = lambda line, _: update(line["epoch"], settings["epochs"])  # noqa: E731
        run = settings | ({"devices": devices} if devices > 1 else {})
        tuned = fine_tune(model, splits, table, method, run, checkpoint=checkpoint, on_epoch=told)
    shown = Table(box=SIMPLE)
    for heading in ("", "accuracy (%)", "cost per 100", "95 %"):
        shown.add_column(heading, no_wrap=True)
    for name, e in tuned.rows.items():
        low, high = e.interval("weighted_error_rate")
        cost = f"{100 * e.weighted_error_rate:.2f}"
        shown.add_row(name, f"{100 * e.accuracy:.2f}", cost, f"{100 * low:.2f} to {100 * high:.2f}")
    console.print(shown)
    for pair in tuned.rows["after"].top_pairs(3):
        console.print(f"after, {pair}", soft_wrap=True, markup=False, highlight=False)
    written = save_fine_tuned(tuned, model, out, table, method, settings)
    checkpoint.unlink(missing_ok=True)
    _show_files([written])


@app.command()
def tabular(
    out: Annotated[Path, typer.Option("--out", help="The record to write.")] = Path("out/tabular.json"),
    seeds: Annotated[int, typer.Option(min=2, help="How many splits, each with its own baseline.")] = 10,
) -> None:
    """Every method and the classical rivals on breast-cancer and wine data with asymmetric costs; some minutes.

    Example: csada tabular --seeds 3
    """
    from csada.experiments import tabular as experiment
    from csada.experiments.records import write_json

    with progress("training") as update:
        record = experiment.run(seeds, update)
    for name in record["datasets"]:
        table = Table(title=f"{name}, mean over {seeds} seeds, cheapest first", box=SIMPLE)
        for heading in ("method", "cost", "against baseline (se)", "accuracy (%)"):
            table.add_column(heading)
        for line in experiment.summary(record, name):
            difference = f"{line['difference']:+.3f} ({line['difference_se']:.3f})"
            table.add_row(line["method"], f"{line['cost']:.3f}", difference, f"{100 * line['accuracy']:.2f}")
        console.print(table)
    _show_files([write_json(out, record)])


@data_app.command("show")
def data_show(
    data: Annotated[str, typer.Argument(help="A data set's name, a folder of images or a CSV file.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lie.")] = None,
    scale: Annotated[float, typer.Option(help="The fraction of the data to use.")] = 1.0,
    skip_bad: Annotated[bool, typer.Option(help="Leave out images that cannot be decoded, and list them.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw one image of each class into this file.")] = None,
) -> None:
    """What a data set holds: parts, classes, samples a class.

    Example: csada data show pills --scale 0.05 --figure out/pills.png
    """
    import numpy as np

    from csada.data import load
    from csada.report.examples import examples_figure
    from csada.report.style import save

    with progress("decoding") as update:
        splits = load(data, data_dir, scale, on_progress=update, **({"skip_bad": True} if skip_bad else {}))
    table = Table("class", "train", "validation", "test", title=splits.name)
    parts = (splits.train, splits.validation, splits.test)
    counts = [np.bincount(part.y.numpy(), minlength=len(splits.classes)) for part in parts]
    for name, *numbers in zip(splits.classes, *counts, strict=True):
        table.add_row(name, *map(str, numbers))
    table.add_section()
    table.add_row("all", *(f"{len(part):,}" for part in parts))
    console.print(table)
    for name in splits.skipped:
        console.print(f"left out: {name}", soft_wrap=True, markup=False, highlight=False)
    if figure is not None:
        if splits.train.x.ndim != 4:
            raise InputError(f"{splits.name} holds no images to draw")
        first = [int((splits.train.y == k).nonzero()[0]) for k in range(len(splits.classes))]
        images = [splits.train.x[i].expand(3, -1, -1).numpy() for i in first]
        _show_files(save(examples_figure(images, splits.classes, columns=5), figure, (figure.suffix[1:] or "png",)))


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="mnist or cifar10.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it; else $CSADA_DATA or the cache.")] = None,
) -> None:
    """Download a public data set: resumed where it broke off, checked, and only then in its place.

    Example: csada data fetch mnist
    """
    from csada.data.fetch import fetch

    with progress("downloading") as update:
        where = fetch(name, data_dir, on_progress=update)
    console.print(f"{name} is in {where}", soft_wrap=True)


@app.command()
def train(
    data: Annotated[str, typer.Argument(help="A data set's name, a folder of images or a CSV file.")],
    out: OutDir = Path("out/baseline"),
    model: Annotated[str, typer.Option(help="resnet34, resnet9, cnn or mlp.")] = "resnet34",
    recipe: Annotated[
        str | None, typer.Option(help="small, fast, paper, pmi-fast, pmi-resnet34 or pmi-resnet9; else by the model.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    pretrained: Annotated[str | None, typer.Option(help="Weights to start from: a file, or hub:OWNER/NAME.")] = None,
    seed: int = 0,
    scale: Annotated[float, typer.Option(help="The fraction of the data to use.")] = 1.0,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lie.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave out images that cannot be decoded.")] = False,
) -> None:
    """Train a baseline by a recipe, and write it with its record: the model that the methods start from.

    Example: csada train digits --model cnn --epochs 60 --out out/digits
    """
    from csada.data import load
    from csada.experiments.baseline import save_baseline, train_baseline

    with progress("decoding") as update:
        splits = load(data, data_dir, scale, on_progress=update, **({"skip_bad": True} if skip_bad else {}))
    with progress("training") as update:
        baseline = train_baseline(
            splits,
            model,
            recipe,
            seed=seed,
            epochs=epochs,
            pretrained=pretrained,
            on_epoch=lambda line, total: update(line["epoch"], total),
        )
    record = baseline.record
    console.print(
        f"{splits.name}, {model}: test accuracy {100 * record['accuracy']['test']:.2f} %, training loss without "
        f"augmentation {record['training_loss']:.4f}, {record['training_seconds']:.0f} s",
        soft_wrap=True,
    )
    if not record["interpolates"]:
        errors.print(
            "The baseline does not fit its training data. CSADA is made for models that do; train longer, or a larger "
            "model. A model that still makes training errors can also be re-weighted (method cost_weighted).",
            style="yellow",
            soft_wrap=True,
        )
    _show_files([save_baseline(baseline, splits, out)])


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="One of --list, all (the shortest first), or a TOML file of yours.")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke, fast, paper, or script (as the authors' code).")] = "fast",
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
    limit_minutes: Annotated[float | None, typer.Option(help="Start no further run after this time.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes at once; with several GPUs they share these.")] = 1,
) -> None:
    """Tables and figures of the paper: do the runs that are missing, write the record, draw from it.

    Example: csada reproduce failure-cifar10 --limit-minutes 30
    """
    from csada.experiments import spec as specs
    from csada.experiments.runner import collect, make_plan, run_experiment, write_record

    if show:
        table = Table("name", "data", "runs done", "left, about", "shows", box=SIMPLE)
        for each in specs.names():
            if specs.has_scale(each, scale):
                spec = specs.load_spec(each, scale, data)
                plan = make_plan(spec, runs, results)
                total = len(plan.runs) or spec.count
                left = len(plan.missing()) if plan.runs else total
                table.add_row(each, spec.data, f"{total - left} of {total}", _duration(left * spec.seconds), spec.title)
        console.print(table)
        console.print("Time: a rough guess for one H200 GPU (smoke: a CPU), without the baselines.", soft_wrap=True)
        return
    if name is None:
        raise InputError("name an experiment, or all; csada reproduce --list shows them")
    names = [each for each in specs.names() if specs.has_scale(each, scale)] if name == "all" else [name]
    chosen = sorted((specs.load_spec(each, scale, data) for each in names), key=lambda s: s.count * s.seconds)
    deadline = None if limit_minutes is None else time.monotonic() + 60 * limit_minutes
    failed = 0
    for spec in chosen:
        with progress(spec.name) as update:
            report = run_experiment(
                spec,
                runs,
                results_dir=results,
                data_dir=data_dir,
                all_pairs=all_pairs,
                workers=workers,
                limit_minutes=None if deadline is None else (deadline - time.monotonic()) / 60,
                on_progress=update,
            )
        record = collect(spec, runs, results)
        console.print(
            f"{spec.name}, {scale}: {len(report.done)} done now, {len(report.skipped)} before, "
            f"{len(report.left)} left, {len(report.failed)} failed",
            highlight=False,
        )
        for run, reason in report.failed.items():
            errors.print(f"  failed: {run}: {reason}", style="red", markup=False, soft_wrap=True, highlight=False)
        failed += len(report.failed)
        if record["runs"]:
            files = [write_record(results / f"{spec.record}.json", record)]
            if spec.name in specs.names():  # the paper's; what an experiment of yours shows is up to you
                from csada.report.reproduction import render

                files += render(record, results / spec.record if spec.variant else results)
            _show_files(files)
    if failed:
        raise RunError(f"{failed} run{'s' * (failed > 1)} failed, named above; the same command tries again")


ResultsDir = Annotated[Path, typer.Option("--results", help="Folder of records.")]


@app.command("tables")
def write_tables(results: ResultsDir = Path("results"), out: OutDir = Path("results")) -> None:
    """The paper's tables from the records, ours beside the paper's: Markdown, CSV and LaTeX.

    Example: csada tables --results results --out out/tables
    """
    from csada.report import reproduction, runs

    for record in runs.read_records(results):
        _show_files(reproduction.write_tables(record, out))


@app.command("figures")
def write_figures(results: ResultsDir = Path("results"), out: OutDir = Path("results")) -> None:
    """The paper's figures from the records: PNG and SVG.

    Example: csada figures --results results --out out/figures
    """
    from csada.report import reproduction, runs

    for record in runs.read_records(results):
        _show_files(reproduction.write_figures(record, out))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _p_value(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _mean_sd(mean_sd: tuple[float, float | None], factor: float = 1) -> str:
    mean, sd = mean_sd
    return f"{factor * mean:.2f}" + ("" if sd is None else f" ({factor * sd:.2f})")


def _show_files(files: list[Path]) -> None:
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)


def main() -> None:
    try:
        app()
    except InputError as error:
        errors.print(f"csada: {error}", style="red", markup=False, soft_wrap=True, highlight=False)
        sys.exit(2)
    except RunError as error:
        errors.print(f"csada: {error}", style="red", markup=False, soft_wrap=True, highlight=False)
        sys.exit(1)
