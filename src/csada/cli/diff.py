"""Two versions of a classifier on the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from csada.cli import common as cli


@cli.command()
def diff(
    old: Annotated[Path, Argument(help="The folder of one version.")],
    new: Annotated[Path, Argument(help="The folder of another; its costs count.")],
    data: cli.DataSet,
    part: Annotated[str, Option(metavar="test|validation|train|all", help="Of the data.")] = "test",
    out: Annotated[
        Path | None, Option(help="Also write a page with the samples that change hands, such as diff.html.")
    ] = None,
    priors: Annotated[
        Path | None, Option(metavar="FILE", help="Count costs at these class frequencies: a CSV of class,frequency.")
    ] = None,
    force: cli.Force = False,
    reading: cli.Judging = cli.AS_IT_IS,
    as_json: cli.AsJson = False,
) -> None:
    """Which decisions differ between two versions on a data set, and what that costs; with --out also as pictures.

    Example: csada diff out/fitted out/version2 digits --out diff.html
    """
    from dataclasses import replace

    from csada.files import replaceable
    from csada.report.difference import difference_page
    from csada.workflow.versions import changed_samples, difference, read_priors

    replaceable(out, "page", force=force)
    first, second = (reading.opened(folder) for folder in (old, new))
    splits = reading.load(data, second)
    found = difference(first, second, splits, part, seen=reading.seen)
    if priors is not None:
        found = replace(found, frequencies=read_priors(priors, second.classes))
    was, now = found.evaluations
    pairs = [(a, b) for a, b in zip(was.top_pairs(5), now.top_pairs(5), strict=True) if a.samples]
    if out is not None:
        rows = [
            ("cost per 100 predictions", *(f"{100 * paid.mean():.2f}" for paid in found.paid)),
            ("accuracy", *(f"{100 * e.accuracy:.2f} %" for e in (was, now))),
            *(
                (f"{a.truth} labelled as {a.predicted}", *(f"{p.errors} of {p.samples}" for p in (a, b)))
                for a, b in pairs
            ),
        ]
        cards = changed_samples(second, splits, part, found, reading.seen)
        title = f"{splits.name}, {part}: {old.name} and {new.name}"
        cli.write(out, difference_page(title, found.verdict, found.moves, rows, cards))
    if as_json:
        told: dict[str, Any] = {"old": str(old), "new": str(new), "data": splits.name, "part": part}
        told |= {"samples": len(found.labels), "changed": len(found.changed), "verdict": found.verdict}
        told["moves"] = [{"old": a, "new": b, "samples": n} for a, b, n in found.moves]
        told["mean_cost"] = {"old": found.paid[0].mean(), "new": found.paid[1].mean()}
        told["accuracy"] = {"old": was.accuracy, "new": now.accuracy}
        told["pairs"] = [a._asdict() | {"errors": {"old": a.errors, "new": b.errors}} for a, b in pairs]
        cli.show_json(told)
        return
    if found.moves:
        cli.show_table(("new decision", "samples"), [(a, b, f"{n:,}") for a, b, n in found.moves])
    cli.say(
        found.verdict, *(f"{a.truth} -> {a.predicted}: {a.errors} of {a.samples}, now {b.errors}" for a, b in pairs)
    )
    cli.show_files([out] if out else [])
