"""Acceptance for a pipeline: pass, fail or not enough samples, as an exit code, a table, JSON and JUnit XML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from csada.cli import common as cli
from csada.files import replaceable

if TYPE_CHECKING:
    from csada.decisions.acceptance import Check

CODES = {"pass": 0, "fail": 1, "not enough samples": 3}
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML cannot hold


@cli.command()
def check(
    model: cli.Model,
    data: cli.DataSet,
    criteria: Annotated[Path, Option(help="A TOML file of limits.")] = Path("limits.toml"),
    groups: Annotated[
        Path | None, Option(help="A CSV or Parquet file (file or row, group): judge each group, too.")
    ] = None,
    part: Annotated[
        str, Option(metavar="auto|test|all", help="Of the data; auto: all where they are new, else test.")
    ] = "auto",
    junit: Annotated[Path | None, Option(help="Also write the verdicts to this file as JUnit XML.")] = None,
    force: cli.Force = False,
    reading: cli.Judging = cli.AS_IT_IS,
    as_json: cli.AsJson = False,
) -> None:
    """Accept a model, or not: whether the test samples prove that it keeps every limit of a file.

    The exit code is 0 (pass), 1 (fail) or 3 (not enough samples). The test samples are looked at once for each set of
    criteria: checks.json in the model's folder keeps the outcome, and the same command repeats it.

    Example: csada check out/fitted photos --criteria limits.toml --junit check.xml
    """
    from csada.decisions.limits import Limits
    from csada.workflow import check as workflow

    replaceable(junit, "JUnit file", force=force)
    limits = Limits.read(criteria)
    classifier = reading.opened(model)
    limits.resolved(classifier.classes)  # refuses unknown classes before the data are read
    splits = reading.load(data, classifier)
    looked = workflow.check(classifier, model, splits, limits, part=part, seen=reading.seen, groups=groups, source=data)
    found = looked.check
    if junit is not None:
        write_junit(junit, found)
    if as_json:
        kept = {"model": str(model), "verdict": found.verdict, "again": looked.again, "judged": found.judged}
        kept |= {"data": found.data, "part": found.part, "samples": found.count, "trained_on": found.trained_on}
        kept |= {"sha256": found.criteria, "criteria": found.results, "groups": found.groups}
        earlier = [
            {"judged": e.judged, "sha256": e.criteria, "same_model": e.model == found.model, "verdict": e.verdict}
            for e in looked.earlier
        ]
        cli.show_json(kept | {"earlier": earlier})
    else:
        if looked.again:
            cli.say(f"Judged on {found.when}: the test samples are looked at once per criteria. The outcome was:")
        rows: list[tuple[str, ...]] = [
            (c.title, f"{c.at} {_percent(c.limit)}", f"{c.bad:,} of {c.samples:,}", _percent(c.bound), c.verdict)
            for c in found.results
        ]
        cli.show_table(("limit", "bad", "proven", "verdict"), rows)
        cli.say(*(f"{c.title}: {c.why}" for c in found.results if c.why))
        for group in found.groups:
            if group.mean_cost is not None:
                pairs = "".join(f"; {p}" for p in group.pairs)
                cost = f"cost per 100 predictions {100 * group.mean_cost:.2f}"
                cli.say(f"{group.name}: {group.samples:,} samples, {cost}{pairs}")
        cli.say(*filter(None, [looked.history]), style="yellow")
        cli.say(f"{found.verdict}: {found.told()}")
    raise Exit(CODES[found.verdict])


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def write_junit(path: Path, found: Check) -> None:
    """One test case per criterion: too few samples are an error, not a failure."""
    from xml.etree import ElementTree as Xml

    kinds = {"fail": "failure", "not enough samples": "error"}
    counts = {f"{kind}s": sum(c.verdict == verdict for c in found.results) for verdict, kind in kinds.items()}
    facts = {"name": "csada check", "tests": len(found.results), "timestamp": found.judged} | counts
    suite = Xml.Element("testsuite", {key: str(value) for key, value in facts.items()})
    for c in found.results:
        case = Xml.SubElement(suite, "testcase", name=_text(c.name), classname=_text(c.group or "all samples"))
        if c.why:
            Xml.SubElement(case, kinds[c.verdict], type=c.verdict, message=_text(c.why))
    Xml.SubElement(suite, "system-out").text = _text(found.told())
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    text = '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"
    cli.write(path, text, "--junit")


def _text(text: str) -> str:
    return NO_XML.sub("\ufffd", text)
