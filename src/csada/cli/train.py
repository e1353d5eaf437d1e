"""From data to a first model: train."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from csada.cli import common as cli
from csada.errors import InputError


@cli.command()
def train(
    data: cli.DataSet,
    out: cli.OutDir = Path("out/baseline"),
    model: Annotated[
        str | None,
        Option(
            help="resnet34, resnet9, cnn, mlp, timm:NAME, torchvision:NAME, or package.module:factory with --trust."
        ),
    ] = None,
    recipe: Annotated[
        str | None, Option(help="small, fast, paper, pmi-fast, pmi-resnet34 or pmi-resnet9; by default by the data.")
    ] = None,
    epochs: Annotated[int | None, Option(min=1, help="How many epochs; by default as the recipe says.")] = None,
    features: Annotated[
        str | None,
        Option(
            metavar="BACKBONE", help="Train a head on frozen features: a model's folder, or a name with --pretrained."
        ),
    ] = None,
    pretrained: Annotated[str | None, Option(help="Weights to start from: a file, or hub:OWNER/NAME.")] = None,
    seed: int = 0,
    reading: cli.Reading = cli.AS_IT_IS,
    flip: cli.Flip = False,
    trust: cli.Trust = False,
    device: cli.Device = "auto",
    track: cli.Track = None,
    force: Annotated[bool, Option("--force", help="Train again, even if the folder holds a model.")] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Train a baseline: a model that makes as few mistakes as possible. Costs are ignored.

    A network of timm, torchvision or your own starts from --pretrained FILE, or from nothing. Your own factory is called with
    classes, and with seed, channels, size and features where it takes them.

    With --features the network of BACKBONE stays as it is. Its features are computed once and kept in the cache, and a head
    (--model linear or mlp) is trained on them. Attacks of csada fit then change features, not images.

    Without further options, model, image size and length suit the data: on a CPU some minutes of training. Interrupted?
    Run the same command again: it resumes.

    Example: csada train photos --out out/photos
    """
    from csada.classifier import Classifier
    from csada.data import options_of
    from csada.folders import CONFIG, reserved
    from csada.models.featured import HEADS
    from csada.reading import plain
    from csada.tracking import tracked
    from csada.workflow.features import in_folder, train_head
    from csada.workflow.project import suited, suited_size
    from csada.workflow.train import train as workflow

    where = cli.chosen_device(device)
    gpu = where.type == "cuda"
    backbone = None if features is None else in_folder(features)
    if backbone is not None:
        takes = backbone.input
        size = reading.size or (None if takes.is_row else takes.shape[-1])
        size = size if "size" in options_of(data, reading.data_dir) else None
    else:
        size = reading.size or suited_size(data, reading.data_dir, gpu=gpu)
    splits = reading.load(data, size=size, flip=flip)
    if features is not None:
        model, recipe = model or "linear", recipe or "small"
        if model not in HEADS:
            raise InputError(f"--features trains a head: --model {' or '.join(HEADS)}, not {model!r}")
    else:
        model, epochs, recipe, _ = suited(splits, model, recipe, epochs, gpu=gpu)
    settings = {"data": data, "model": model, "recipe": recipe, "epochs": epochs, "seed": seed}
    with (
        reserved(out) as folder,
        cli.progress("training") as update,
        tracked(track, settings, lambda line, total: update(line["epoch"], total)) as on_epoch,
    ):
        known = None
        if not force and features is None and (folder / CONFIG).exists():
            with suppress(InputError):  # it cannot be used and is replaced
                known = Classifier.load(folder, trust=trust)
        common: dict[str, Any] = {"seed": seed, "epochs": epochs, "pretrained": pretrained, "device": where}
        common |= {"checkpoints": folder, "on_epoch": on_epoch}
        if features is not None:
            classifier = train_head(splits, features, model, recipe=recipe, **common)
        else:
            classifier = workflow(splits, model, recipe, trust=trust, known=known, **common)
        if classifier is not known:
            classifier.save(folder)
    facts = classifier.training
    assert facts is not None
    if as_json:
        told = {name: value for name, value in plain(facts).items() if name != "history"}
        cli.show_json({"folder": str(out), **told, "seconds": facts.seconds})
    elif classifier is known:
        cli.say(f"{out} holds this model already; nothing to do (another --out or --seed trains another)")
        return
    else:
        cli.say(
            f"{splits.name}, {model}: test accuracy {100 * facts.accuracy['test']:.2f} %, training loss without "
            f"augmentation {facts.loss:.4f}, {facts.seconds:.0f} s"
        )
    if not as_json:
        cli.show_files([out])
