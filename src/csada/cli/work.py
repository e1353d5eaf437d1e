"""From data and costs to a model: train, fit, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from csada.cli.common import Costs, DataDir, DataSet, OutDir, Scale, SkipBad, app, console, errors, progress, show_files


@app.command()
def train(
    data: DataSet,
    out: OutDir = Path("out/baseline"),
    model: Annotated[str, typer.Option(help="resnet34, resnet9, cnn or mlp.")] = "resnet34",
    recipe: Annotated[
        str | None, typer.Option(help="small, fast, paper, pmi-fast, pmi-resnet34 or pmi-resnet9; else by the model.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    pretrained: Annotated[str | None, typer.Option(help="Weights to start from: a file, or hub:OWNER/NAME.")] = None,
    seed: int = 0,
    scale: Scale = 1.0,
    data_dir: DataDir = None,
    skip_bad: SkipBad = False,
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
    show_files([save_baseline(baseline, splits, out)])


@app.command("fit")
def fit_command(
    model: Annotated[Path, typer.Argument(help="A folder written by `csada train`, or by this command.")],
    data: DataSet,
    costs: Costs,
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
    scale: Scale = 1.0,
    data_dir: DataDir = None,
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
    show_files([written])


@app.command()
def compare(
    data: Annotated[str, typer.Argument(help="cifar10, digits, mnist, pills, pmi, toy, or a folder or CSV file.")],
    costs: Costs,
    methods: Annotated[str | None, typer.Option(help="Names with commas between, or all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many baselines; the paired tests need three.")] = 3,
    model: Annotated[str | None, typer.Option(help="mlp, cnn, resnet9 or resnet34; else by the data.")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of fine-tuning; some methods take five times as many.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of fine-tuning, for every method.")] = None,
    baseline_epochs: Annotated[int | None, typer.Option(min=1, help="Of the baseline.")] = None,
    scale: Scale = 1.0,
    data_dir: DataDir = None,
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
    show_files([file])


def _p_value(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _mean_sd(mean_sd: tuple[float, float | None], factor: float = 1) -> str:
    mean, sd = mean_sd
    return f"{factor * mean:.2f}" + ("" if sd is None else f" ({factor * sd:.2f})")
