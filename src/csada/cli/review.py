"""Costs from an expert: the page to look at mistakes, and several experts' answers as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from csada.cli import common as cli
from csada.cli.costs import Overwrite, costs_app, free
from csada.errors import InputError

SHOWN = 10  # pairs on which experts differ most


@cli.command()
def review(
    model: cli.Model,
    data: cli.DataSet,
    out: Annotated[Path, Option("--out", help="The file to write.")] = Path("review.html"),
    costs: Annotated[str | None, Option(help="To begin with; else the model's, or 1 for every mistake.")] = None,
    pairs: Annotated[int, Option(min=2, max=100, help="How many mistakes to compare.")] = 12,
    thumbnails: Annotated[int, Option(min=8, max=1024, help="Pixels of the longer side of an image.")] = 96,
    force: cli.Force = False,
    no_images: Annotated[bool, Option("--no-images", help="Leave out images, and the values of a table.")] = False,
    reading: cli.Judging = cli.AS_IT_IS,
    as_json: cli.AsJson = False,
) -> None:
    """Write one HTML file in which an expert looks at the model's mistakes and says what they cost.

    It shows validation samples, never test. The expert opens it in a browser, compares mistakes, and sends back
    costs.csv, labels.csv (labels that are wrong) and answers.json. No server and no network are needed.

    Example: csada review out/fitted photos --out review.html
    """
    from csada.files import replaceable
    from csada.report.review import page
    from csada.workflow import review as workflow
    from csada.workflow.settings import costs_for

    replaceable(out, "page", force=force)
    classifier = reading.opened(model)
    splits = reading.load(data, classifier)
    start = None if costs is None else costs_for(costs, classifier.classes)
    found = workflow.review(
        classifier, splits, start, pairs=pairs, thumbnails=thumbnails, images=not no_images, seen=reading.seen
    )
    size_mb = cli.write(out, page(found)).stat().st_size / 1e6
    if as_json:
        cli.show_json({"page": str(out), "megabytes": size_mb, "contains": found.contains, "model": found.model})
        return
    cli.say(f"wrote {out} ({size_mb:.1f} MB)", f"It contains {found.contains}. Whoever has the file can see all of it.")


@costs_app.command("merge")
def costs_merge(
    files: Annotated[list[Path], Argument(help="Answers files of csada review, or CSV files of costs.")],
    out: Annotated[Path, Option("--out", help="The file to write.")] = Path("costs.csv"),
    force: Overwrite = False,
    as_json: cli.AsJson = False,
) -> None:
    """Several experts' costs as one file: the geometric mean, and the pairs on which they differ.

    Only ratios count: each expert may have a unit of their own.

    Example: csada costs merge anna.json ben.json --out costs.csv
    """
    import numpy as np

    from csada.decisions.answers import read_experts
    from csada.decisions.elicit import FACTOR, merge

    if len(files) < 2:
        raise InputError(f"one file ({files[0]}) has nothing to be merged with; name two or more")
    free(out, force)
    experts = read_experts(files)
    merged = merge(experts)
    names = ", ".join(file.name for file in files)
    told = f"Geometric mean of {names}.\nThe truth comes first, then the prediction."
    merged.costs.to_csv(out, as_list="*" not in merged.costs.classes, comment=told)
    order = np.argsort(-merged.spread, axis=None, kind="stable")
    pairs = [divmod(int(i), len(merged.costs)) for i in order if merged.spread.flat[i] > 1 + 1e-9]
    flagged = merged.spread > FACTOR * (1 + 1e-9)
    odd = [pair for pair in pairs if flagged[pair]]
    classes = merged.costs.classes
    if as_json:
        found = [
            {
                "truth": classes[y],
                "predicted": classes[z],
                "costs": [float(e[y, z]) for e in experts],
                "mean": merged.costs[y, z],
                "factor": None if np.isinf(merged.spread[y, z]) else float(merged.spread[y, z]),
                "flagged": bool(flagged[y, z]),
            }
            for y, z in pairs
        ]
        cli.show_json({"costs": str(out), "experts": [str(file) for file in files], "differ": found})
        return
    cli.show_files([out])
    cli.say(
        f"{len(experts)} experts differ on {len(pairs):,} pairs, by more than a factor of {FACTOR:g} on {len(odd):,}"
    )
    for y, z in (odd or pairs)[:SHOWN]:
        said = ", ".join(f"{e[y, z]:.4g}" for e in experts)
        factor = (
            "one says that it costs nothing" if np.isinf(merged.spread[y, z]) else f"{merged.spread[y, z]:.1f} times"
        )
        line = f"  {classes[y]} labelled as {classes[z]}: {said}; mean {merged.costs[y, z]:.4g} ({factor})"
        cli.say(line, style="yellow" if odd else None)
    if (more := len(odd or pairs) - SHOWN) > 0:
        cli.say(f"  and {more:,} more; --json has all of them")
