"""Settings for a method within a budget of accuracy: tune."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

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
)


@app.command()
def tune(
    model: Bundle,
    data: DataSet,
    costs: Costs,
    budget: Annotated[float, typer.Option(min=0, help="Points of validation accuracy that may be lost.")] = 0.5,
    trials: Annotated[int, typer.Option(min=1, help="How many settings to try, with those done before.")] = 20,
    epochs: Annotated[int, typer.Option(min=1, help="Of each trial.")] = 5,
    method: Annotated[str, typer.Option(help="Any of csada.METHODS that keeps the model: all but csdnn.")] = "csada",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Else 64 to 512 by the model, and at most an eighth of the samples.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Minutes after which no further trial starts.")] = None,
    seed: int = 0,
    scale: Scale = 1.0,
    size: Size = None,
    flip: Flip = False,
    data_dir: DataDir = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    out: OutDir = Path("out/tuned"),
    as_json: AsJson = False,
) -> None:
    """Find settings that save cost and keep the accuracy. Stopped half-way, the same command goes on.

    Example: csada tune out/digits digits --costs costs.csv --budget 0.5 --trials 20
    """
    from csada.models import read_config
    from csada.report.style import save
    from csada.report.tuning import frontier_figure
    from csada.workflow import tune as tuning
    from csada.workflow.compare import costs_for

    if tuning.optuna_version() is None:
        errors.print(
            "settings are drawn at random; install 'csada[tune]' for a guided search", soft_wrap=True, markup=False
        )
    config, where = read_config(model), chosen_device(device)
    splits = load_data(data, data_dir, scale, size, flip, skip_bad, config)
    with progress("training") as update:
        record = tuning.tune(
            model,
            splits,
            costs_for(costs, config["classes"]),
            out,
            method=method,
            budget=budget,
            trials=trials,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            minutes=timeout,
            device=where,
            on_progress=update,
        )
    files = save(frontier_figure(record), out / "frontier.png")
    valued = {"--scale": scale if scale != 1 else None, "--size": size, "--data-dir": data_dir}
    more = [word for name, value in valued.items() if value is not None for word in (name, str(value))]
    more += [name for name, given in (("--flip", flip), ("--skip-bad", skip_bad)) if given]
    command = tuning.fit_command(record, model, data, costs, *more)
    if as_json:
        typer.echo(json.dumps(record | {"command": command}, indent=1))
        return
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    for heading in ("accuracy,\nvalidation", "cost,\nvalidation", "accuracy,\ntest", "cost,\ntest", "\n95 %"):
        table.add_column(heading, no_wrap=True)
    for name, parts in record["rows"].items():
        numbers = [f"{100 * parts[part][key]:.2f}" for part in ("validation", "test") for key in ("accuracy", "cost")]
        low, high = parts["test"]["cost_interval"]
        table.add_row(name, *numbers, f"{100 * low:.2f} to {100 * high:.2f}")
    console.print(table)
    states = Counter(trial["state"] for trial in record["trials"])
    samples = record["data"]["samples"]
    left = trials - len(record["trials"])
    notes = [
        f"Accuracy in %, cost per 100 predictions. {len(record['trials'])} trials: "
        + (", ".join(f"{count} {state}" for state, count in states.items()) or "none")
        + (f"; {left} left, the same command goes on." if left > 0 else "."),
        f"All were judged on the same {samples['validation']:,} validation samples, on which temperature and strength of the "
        f"rules were chosen too, so the best of them looks better there than it is. The {samples['test']:,} test samples were "
        "used for this table alone.",
    ]
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    show_files([out / "tuning.json", *files, out / "model"])
    console.print(record["verdict"], markup=False, highlight=False, soft_wrap=True)
    console.print(f"The same model again: {command}", markup=False, highlight=False, soft_wrap=True)
