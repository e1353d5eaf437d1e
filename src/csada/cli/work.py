"""From data and costs to a model: train, fit, evaluate, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from csada.cli.common import (
    AsJson,
    Bundle,
    Costs,
    DataDir,
    DataSet,
    Device,
    Flip,
    OutDir,
    Scale,
    Size,
    SkipBad,
    app,
    chosen_device,
    console,
    errors,
    load_data,
    progress,
    show_files,
    takes_option,
)
from csada.errors import InputError

if TYPE_CHECKING:
    pass

Track = Annotated[str | None, typer.Option(help="Also log to csv:FOLDER, tensorboard:FOLDER or mlflow:URI.")]


@app.command()
def train(
    data: DataSet,
    out: OutDir = Path("out/baseline"),
    model: Annotated[str | None, typer.Option(help="resnet34, resnet9, cnn or mlp; else by the data.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="small, fast, paper, pmi-fast, pmi-resnet34 or pmi-resnet9; else by the data.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    pretrained: Annotated[str | None, typer.Option(help="Weights to start from: a file, or hub:OWNER/NAME.")] = None,
    seed: int = 0,
    scale: Scale = 1.0,
    size: Size = None,
    flip: Flip = False,
    data_dir: DataDir = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Train a baseline, and write it with its record: the model that the methods start from.

    Without further options model, size of images and length suit the data: on a CPU some minutes of training. Stopped
    half-way, the same command goes on.

    Example: csada train photos --out out/photos
    """
    from csada.data import find
    from csada.folders import reserved
    from csada.tracking import tracked
    from csada.workflow.project import choose
    from csada.workflow.train import save_baseline, train_baseline

    where = chosen_device(device)
    gpu = where.type == "cuda"
    if size is None and takes_option(data, data_dir, "size"):
        from csada.data.folder import shorter_side

        module, root = find(data, data_dir)
        side = shorter_side(root) if module == "csada.data.folder" and root is not None else 224
        size = choose(1, side, True, gpu=gpu).train["size"]  # the same for any number of samples
    splits = load_data(data, data_dir, scale, size, flip, skip_bad)
    shape = splits.train.x.shape[1:]
    suited = choose(len(splits.train), (size or shape[-1]) if len(shape) == 3 else None, False, gpu=gpu).train
    model = model or suited["model"]
    if recipe is None and model == suited["model"]:
        recipe, epochs = suited.get("recipe"), epochs or suited["epochs"]
    told = {"data": data, "model": model, "recipe": recipe, "epochs": epochs, "seed": seed}
    with (
        reserved(out) as folder,
        progress("training") as update,
        tracked(track, told, lambda line, total: update(line["epoch"], total)) as on_epoch,
    ):
        baseline = train_baseline(
            splits,
            model,
            recipe,
            seed=seed,
            epochs=epochs,
            pretrained=pretrained,
            device=where,
            checkpoints=folder,
            on_epoch=on_epoch,
        )
        save_baseline(baseline, splits, folder)
    record = baseline.record
    if as_json:
        kept = {key: value for key, value in record.items() if key not in ("history", "confusion")}
        typer.echo(json.dumps({"folder": str(out), **kept}, indent=1))
    else:
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
    if not as_json:
        show_files([out])


@app.command("fit")
def fit_command(
    model: Bundle,
    data: DataSet,
    costs: Costs,
    out: OutDir = Path("out/fitted"),
    method: Annotated[str, typer.Option(help="Any of csada.METHODS that keeps the model: all but csdnn.")] = "csada",
    epochs: Annotated[
        int | None, typer.Option(min=0, help="Else 10, for some methods 50; 0 only chooses the decision rule.")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Else by model and method: 0.001 for cnn and mlp, 0.00002 to 0.0001 for ResNets."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Else 64 to 512 by the model, and at most an eighth of the samples.")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0, max=100, help="Points of accuracy that the rule may lose on validation; 100: any.")
    ] = 0.5,
    refer: Annotated[
        float, typer.Option(min=0, max=1, help="Share of cases that may be left to a person; 0: none.")
    ] = 0.0,
    seed: int = 0,
    devices: Annotated[int, typer.Option(min=1, help="Processes, on as many GPUs, or on the CPU.")] = 1,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any option of fit or of the method; repeatable."),
    ] = None,
    scale: Scale = 1.0,
    size: Size = None,
    flip: Flip = False,
    data_dir: DataDir = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a trained model with any method, and write it with its decision rule, its card and the evidence.

    What is not told is set as `csada compare` does, by the kind of the model. Stopped half-way, the same command goes on.

    Example: csada fit out/digits digits --costs pareto:0 --out out/fitted
    """
    from csada.folders import reserved
    from csada.models import read_config
    from csada.report.card import ROWS, advice, evaluations
    from csada.tracking import tracked
    from csada.workflow.compare import costs_for
    from csada.workflow.evidence import fitting
    from csada.workflow.fit import fine_tune, parse_options, save_fine_tuned

    config, where = read_config(model), chosen_device(device)
    given = {"epochs": epochs, "lr": lr, "batch_size": batch_size, "devices": devices if devices > 1 else None}
    settings = {name: value for name, value in given.items() if value is not None} | {"seed": seed}
    settings |= parse_options(options or [])
    splits = load_data(data, data_dir, scale, size, flip, skip_bad, config)
    splits = fitting(splits, config, str(model))
    table = costs_for(costs, splits.classes)
    told = {"data": data, "start": str(model), "costs": costs, "method": method, **settings}
    with (
        reserved(out) as folder,
        progress("training") as update,
        tracked(track, told, lambda line, total: update(line["epoch"], total)) as on_epoch,
    ):
        tuned = fine_tune(
            model,
            splits,
            table,
            method,
            settings,
            budget=budget,
            refer=refer,
            device=where,
            checkpoints=folder,
            on_epoch=on_epoch,
        )
        save_fine_tuned(tuned, folder)
    record = tuned.record
    parts = {part: evaluations(record, part) for part in ("validation", "test")}
    if as_json:
        rows = {row: {part: _numbers(parts[part][row]) for part in parts} for row in ROWS}
        found = {"folder": str(out), "rows": rows, "recommended": record["recommended"], "advice": advice(record)}
        typer.echo(json.dumps(found | {"options": record["options"], "decision": record["decision"]}, indent=1))
        return
    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    shown.add_column(no_wrap=True)
    for heading in ("accuracy,\nvalidation", "cost,\nvalidation", "accuracy,\ntest", "cost,\ntest", "\n95 %"):
        shown.add_column(heading, no_wrap=True)
    for row in ROWS:
        e, before = parts["test"][row], parts["validation"][row]
        low, high = e.interval("weighted_error_rate")
        numbers = [f"{100 * x:.2f}" for v in (before, e) for x in (v.accuracy, v.weighted_error_rate)]
        shown.add_row(row, *numbers, f"{100 * low:.2f} to {100 * high:.2f}")
    console.print(shown)
    end = parts["test"]["after + rule"]
    notes = ["Accuracy in %, cost per 100 cases.", *(f"after + rule, {pair}" for pair in end.top_pairs())]
    if refer:
        notes[0] += (
            f" after + rule leaves {end.referred:,} of {end.samples:,} test cases to a person; accuracy is of the rest."
        )
    if record["attacks"] and not any(pair["reached"] for pair in record["attacks"]):
        notes.append(
            "No attack that was looked at reached its target; a larger step_size goes farther: --set step_size=..."
        )
    notes.append(advice(record))
    if record["recommended"] == "before + rule" and record["history"]:
        notes.append("With --epochs 0 the same command writes that one.")
    for note in notes:
        console.print(note, soft_wrap=True, markup=False, highlight=False)
    show_files([out])
    console.print(f"csada report {out} explains it on a page", soft_wrap=True, markup=False, highlight=False)


@app.command()
def evaluate(
    model: Bundle,
    data: DataSet,
    costs: Annotated[
        str | None,
        typer.Option(help="A CSV file by class name, uniform, pareto:SEED or pmi; else those it was fitted with."),
    ] = None,
    part: Annotated[str, typer.Option(metavar="test|validation|train|all", help="Of the data.")] = "test",
    decision: Annotated[
        str,
        typer.Option(
            metavar="bundle|argmax|rule",
            help="The model's own rule, the most probable class, or least expected cost, calibrated on validation.",
        ),
    ] = "bundle",
    scale: Scale = 1.0,
    size: Size = None,
    data_dir: DataDir = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """What a saved model gets wrong on data, old or new, and what it costs.

    Example: csada evaluate out/fitted photos --part all
    """
    from csada.models import read_config
    from csada.workflow.compare import costs_for
    from csada.workflow.evidence import costs_in, judge

    config, where = read_config(model), chosen_device(device)
    table = costs_in(model) if costs is None else costs_for(costs, config["classes"])
    if table is None:
        raise InputError(f"{model} was trained without costs; give --costs FILE, or --costs uniform")
    splits = load_data(data, data_dir, scale, size, False, skip_bad, config)
    judged = judge(model, splits, table, part=part, decision=decision, device=where)
    e, confused = judged.evaluation, judged.confused
    if as_json:
        found = {"model": str(model), "data": splits.name, "part": part, "decision": judged.decision, **_numbers(e)}
        found |= {"classes": list(e.costs.classes), "confusion": e.confusion.tolist()}
        pairs = {"dearest": e.top_pairs(5), "most_confused": confused}
        found |= {name: [p._asdict() | {"two_sided_95": p.bounds} for p in listed] for name, listed in pairs.items()}
        typer.echo(json.dumps(found, indent=1))
        return
    numbers = _numbers(e)
    low, high = numbers["interval"]
    referred = f"; {e.referred:,} left to a person, {100 * e.coverage:.1f} % decided itself" if e.referred else ""
    lines = [
        f"{splits.name}, {part}, by {judged.decision}: {e.samples:,} samples, accuracy {100 * e.accuracy:.2f} %, cost per 100 "
        f"{numbers['cost_per_100']:.2f} (95 %: {low:.2f} to {high:.2f}){referred}",
        "the dearest mistakes:",
        *(f"  {pair} at {pair.cost:.4g}" for pair in e.top_pairs(5)),
        "the most frequent mistakes:" if confused else "no mistakes",
        *(f"  {pair} at {pair.cost:.4g}" for pair in confused),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


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
    size: Size = None,
    data_dir: DataDir = None,
    out: OutDir = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Several methods, each from the same baselines, against the baseline and the training-free decision rule.

    Example: csada compare digits --costs pareto:0 --methods csada,sosr --seeds 5
    """
    from csada.costs import CostMatrix
    from csada.workflow import compare as experiment
    from csada.workflow.runs import write_json

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
            size=size,
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


def _numbers(e: Any) -> dict[str, Any]:
    low, high = e.interval("weighted_error_rate")
    cost = {"cost_per_100": 100 * e.weighted_error_rate, "interval": [100 * low, 100 * high]}
    return {"samples": e.samples, "accuracy": e.accuracy, **cost, "coverage": e.coverage}
