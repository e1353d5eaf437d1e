"""From data to a first model: train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from csada.cli import common as cli


@cli.app.command()
def train(
    data: cli.DataSet,
    out: cli.OutDir = Path("out/baseline"),
    model: Annotated[str | None, Option(help="resnet34, resnet9, cnn or mlp; else by the data.")] = None,
    recipe: Annotated[
        str | None, Option(help="small, fast, paper, pmi-fast, pmi-resnet34 or pmi-resnet9; else by the data.")
    ] = None,
    epochs: Annotated[int | None, Option(min=1, help="Instead of the recipe's.")] = None,
    pretrained: Annotated[str | None, Option(help="Weights to start from: a file, or hub:OWNER/NAME.")] = None,
    seed: int = 0,
    scale: cli.Scale = 1.0,
    size: cli.Size = None,
    flip: cli.Flip = False,
    data_dir: cli.DataDir = None,
    skip_bad: cli.SkipBad = False,
    device: cli.Device = "auto",
    track: cli.Track = None,
    as_json: cli.AsJson = False,
) -> None:
    """Train a baseline: a model that makes as few mistakes as it can, whatever they cost.

    Without further options, model, image size and length suit the data: on a CPU some minutes of training. Interrupted?
    Run the same command again: it resumes.

    Example: csada train photos --out out/photos
    """
    from csada.folders import reserved
    from csada.reading import plain
    from csada.tracking import tracked
    from csada.workflow.project import suited, suited_size
    from csada.workflow.train import train as workflow

    where = cli.chosen_device(device)
    gpu = where.type == "cuda"
    size = size or suited_size(data, data_dir, gpu=gpu)
    splits = cli.load_data(data, data_dir, scale, size=size, flip=flip, skip_bad=skip_bad)
    model, epochs, recipe, _ = suited(splits, model, recipe, epochs, gpu=gpu)
    settings = {"data": data, "model": model, "recipe": recipe, "epochs": epochs, "seed": seed}
    with (
        reserved(out) as folder,
        cli.progress("training") as update,
        tracked(track, settings, lambda line, total: update(line["epoch"], total)) as on_epoch,
    ):
        classifier = workflow(
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
        classifier.save(folder)
    facts = classifier.training
    assert facts is not None
    if as_json:
        known = {name: value for name, value in plain(facts).items() if name != "history"}
        cli.show_json({"folder": str(out), **known, "seconds": facts.seconds})
    else:
        cli.say(
            f"{splits.name}, {model}: test accuracy {100 * facts.accuracy['test']:.2f} %, training loss without "
            f"augmentation {facts.loss:.4f}, {facts.seconds:.0f} s"
        )
    if not facts.interpolates:
        cli.warn(
            "The baseline does not fit its training data. CSADA is made for models that do; train longer, or a larger "
            "model. A model that still makes training errors can also be re-weighted (method cost_weighted)."
        )
    if not as_json:
        cli.show_files([out])
