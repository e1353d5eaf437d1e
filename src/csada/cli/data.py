"""Data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from csada.cli import common as cli
from csada.errors import InputError
from csada.files import replaceable

data_app = typer.Typer(no_args_is_help=True, help="Data sets: show what they hold, download public ones.")
cli.app.add_typer(data_app, name="data")

FORMATS = (".png", ".svg", ".pdf")
PICTURED = 60  # classes, at most, in a figure


@data_app.command("show")
def data_show(
    data: cli.DataSet,
    data_dir: cli.DataDir = None,
    scale: cli.Scale = 1.0,
    skip_bad: cli.SkipBad = False,
    cache_gb: cli.CacheGb = None,
    label: cli.Label = None,
    ignore: cli.Ignore = None,
    figure: Annotated[Path | None, Option(help="Also draw one image of each class into this file.")] = None,
    force: cli.Force = False,
    as_json: cli.AsJson = False,
) -> None:
    """What a data set holds: parts, classes, samples per class.

    Example: csada data show pills --scale 0.05 --figure out/pills.png
    """
    from csada.report.examples import examples_figure
    from csada.report.style import save

    if figure is not None:
        figure = figure if figure.suffix or not figure.name else figure.with_suffix(".png")
        replaceable(figure, "figure", force=force)
        if figure.suffix not in FORMATS:
            raise InputError(f"{figure} is no name of a figure; it ends in {', '.join(FORMATS)}")
    splits = cli.Reading(scale, _small(data, data_dir), data_dir, skip_bad, label=label, ignore=ignore).load(data)
    counts = splits.counts
    if as_json:
        told = {"name": splits.name, "samples": counts, "skipped": splits.skipped, "warnings": splits.warnings}
        cli.show_json(told)
    else:
        rows = [(name, *(str(counts[part][name]) for part in counts)) for name in splits.classes]
        rows.append(("all", *(f"{len(part):,}" for part in splits.parts.values())))
        cli.show_table(tuple(counts), rows, splits.name)
    if figure is not None:
        if splits.train.x.ndim != 4:
            raise InputError(f"{splits.name} holds no images to draw")
        shown = splits.classes[:PICTURED]
        first = [int((splits.train.y == k).nonzero()[0]) for k in range(len(shown))]
        pictures = [splits.train.x[i].expand(3, -1, -1).numpy() for i in first]
        files = save(examples_figure(pictures, shown, columns=5), figure, (figure.suffix[1:],), Title="csada data show")
        if len(shown) < len(splits.classes):
            cli.note(f"the figure shows the first {len(shown)} of {len(splits.classes):,} classes")
        cli.show_files([] if as_json else files)


def _small(data: str, data_dir: Path | None) -> int | None:
    """Images of one's own as small as they are: nothing here needs more pixels."""
    from csada.data import IMAGES, find
    from csada.workflow.project import images

    return min(images(data, data_dir)[0] or 224, 224) if find(data, data_dir)[0] == IMAGES else None


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, Argument(help="mnist or cifar10.")],
    data_dir: Annotated[Path | None, Option(help="Where to put it; by default $CSADA_DATA or the cache.")] = None,
) -> None:
    """Download a public data set and check it. Interrupted? Run the same command again: it resumes.

    Example: csada data fetch mnist
    """
    from csada.data.fetch import fetch

    with cli.progress("downloading") as update:
        where = fetch(name, data_dir, on_progress=update)
    cli.say(f"{name} is in {where}")


@data_app.command("save")
def data_save(
    data: cli.DataSet,
    out: Annotated[Path, Argument(help="The folder to make.")],
    data_dir: cli.DataDir = None,
    scale: cli.Scale = 1.0,
    seed: Annotated[int, Option(help="Seed of the sample and of the split.")] = 0,
    size: cli.Size = None,
    classes: Annotated[str | None, Option(metavar="NAME,NAME", help="Of pills: draw only these products.")] = None,
) -> None:
    """Write a data set of images as a folder of files by class, for instance to try csada on files.

    Example: csada data save pills out/pills --scale 0.143 --size 96
    """
    from csada.data import folder, load

    if out.exists():
        raise InputError(f"{out} is there already; remove it, or choose another folder")  # before minutes of drawing
    chosen = None if classes is None else [name.strip() for name in classes.split(",")]
    own = cli.given(size=size or _small(data, data_dir), classes=chosen)
    with cli.progress("drawing") as update:
        splits = load(data, data_dir, scale, seed, on_progress=update, **own)
    with cli.progress("writing") as update:
        cli.show_files([folder.save(splits, out, update)])
