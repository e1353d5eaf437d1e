"""A model in use: what its log of decisions says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from csada.cli import common as cli
from csada.errors import InputError
from csada.files import replaceable

if TYPE_CHECKING:
    from csada.workflow.monitor import Bounds, Monitored

ROWS = 15  # periods on the screen


@cli.command()
def monitor(
    model: Annotated[Path, Argument(help="The folder of `csada fit` whose decisions were logged.")],
    log: Annotated[Path, Argument(help="The file that `csada predict --log` wrote, or your own program.")],
    every: Annotated[str, Option(metavar="day|week|N", help="A period: a day, a week, or so many decisions.")] = "1000",
    labels: Annotated[
        Path | None, Option(help="Labels that came later: a CSV or Parquet file with input or id, and label.")
    ] = None,
    pair: Annotated[
        list[str] | None,
        Option(metavar="TRUTH>PREDICTED=SHARE", help="Alarm where more of a class's cases are so mistaken."),
    ] = None,
    cost_rise: Annotated[
        float | None, Option(min=0, help="Alarm where the cost rises by this share: 0.5 is half as much again.")
    ] = None,
    frequency_change: Annotated[
        float | None, Option(min=0, max=1, help="Alarm where class frequencies moved by this share of cases.")
    ] = None,
    change: Annotated[bool, Option(help="Alarm where more than class frequencies changed.")] = True,
    out: Annotated[Path | None, Option(help="The HTML page to write, with charts.")] = None,
    suggest_priors: Annotated[
        Path | None,
        Option(
            help="The newest class frequencies: a .csv file for fit --priors, or a new folder for a re-weighted model."
        ),
    ] = None,
    recalibrate: Annotated[
        Path | None, Option(help="A new folder for the model, re-calibrated with the late labels.")
    ] = None,
    force: cli.Force = False,
    trust: cli.Trust = False,
    as_json: cli.AsJson = False,
) -> None:
    """What decisions in use cost, estimated without labels, and whether the estimate can be trusted.

    Cost, referrals, critical pairs and class frequencies are estimated by period, with 95 % bands. A test tells whether
    more changed than class frequencies; then no estimate holds. Alarms of the newest period with enough decisions end the
    command with exit code 1, after all output: with --json, standard output is empty if the command could not finish.
    Bounds belong into the table [monitor] of csada.toml.

    Example: csada monitor out/fitted decisions.jsonl --every week --out monitor.html
    """
    from dataclasses import replace

    from csada.report.monitor import page
    from csada.workflow import late
    from csada.workflow import monitor as workflow
    from csada.workflow.versions import check_new

    replaceable(out, "page", force=force)
    if suggest_priors is not None and workflow.is_table(suggest_priors):
        replaceable(suggest_priors, "table of frequencies", force=force)
    elif suggest_priors is not None:
        check_new(suggest_priors)
    if recalibrate is not None:
        check_new(recalibrate)
    found = workflow.monitor(model, log, every, _bounds(pair or [], cost_rise, frequency_change, change), labels)
    written = []  # before anything is shown: who reads JSON knows that all was done
    if suggest_priors is not None:
        written.append(workflow.suggest_priors(found, suggest_priors, trust=trust))
    if recalibrate is not None:
        written.append(late.recalibrate(model, log, found.offer, recalibrate, trust=trust))
    if out is not None:
        written.append(cli.write(out, page(found)))
    newest = found.newest
    if suggest_priors is not None:
        cli.note(*filter(None, [workflow.unseen(found)]))
    if as_json:
        alarm = {"alarms": newest.alarms, "period": newest.name, "trusted": newest.trusted} if newest else {}
        told = replace(found, offer=found.offer and replace(found.offer, samples=None))
        cli.show_json({"alarms": (), "period": None, "trusted": None, **alarm, "found": told})
    else:
        _show(found)
        cli.show_files(written)
    if newest and newest.alarms:
        raise Exit(1)


def _bounds(pairs: list[str], cost_rise: float | None, frequency_change: float | None, change: bool) -> Bounds:
    from csada.rows import number
    from csada.workflow.monitor import Bounds

    table = {}
    for text in pairs:
        names, _, share = text.rpartition("=")
        truth, sign, predicted = (each.strip() for each in names.partition(">"))
        try:
            most = number(0, "pair", share.strip())
        except InputError:
            most = -1.0
        if not (sign and truth and predicted and 0 <= most <= 1):
            raise InputError(
                f"--pair {text!r} is not TRUTH>PREDICTED=SHARE; for example --pair 'malignant>benign=0.01'"
            )
        table[truth, predicted] = most
    return Bounds(table, cost_rise, frequency_change, change)


def _show(found: Monitored) -> None:
    from csada.report.monitor import FIRST

    cli.warn(*(f"csada: {note}" for note in found.notes))
    rows: list[tuple[str, ...]] = []
    for each in found.periods[-ROWS:]:
        share = f"{100 * each.referred / each.decisions:.1f} %" if each.decisions else "-"
        real = f"{100 * each.truth.mean_cost:.2f} ({each.truth.labelled:,})" if each.truth else "-"
        cost, band, told = "-", "-", "too few decisions" if each.decisions else "no decisions"
        if each.cost is not None:
            low, high = (100 * end for end in each.cost.band)
            cost, band = f"{100 * each.cost.value:.2f}", f"{low:.2f} to {high:.2f}"
            told = "no" if each.trusted else "YES"
        rows.append((each.name, f"{each.decisions:,}", share, cost, band, real, told))
    cli.say(
        "Cost per 100 decisions; real: of those whose label came, in brackets; changed: more than class frequencies did, so "
        "that no estimate holds."
    )
    cli.show_table(("decisions", "referred", "cost", "95 %", "real (labels)", "changed"), rows)
    if len(found.periods) > ROWS:
        cli.say(f"{len(found.periods) - ROWS:,} earlier periods: see --out and --json")
    cli.say(f"validation cost {100 * found.validation_cost:.2f} per 100 predictions")
    newest = found.newest
    if newest is None:
        cli.warn("no period has enough decisions for an estimate")
        return
    pairs = [
        f"  {p.truth} labelled as {p.predicted}: {p.expected:.1f} ({p.low:.1f} to {p.high:.1f})"
        for p in newest.pairs[:FIRST]
    ]
    shown = f", the {len(pairs)} costliest or bounded of {found.critical:,} critical pairs (more: --out, --json)" * (
        found.critical > len(pairs)
    )
    cli.say(
        f"expected in {newest.name}{shown}:" if pairs else f"in {newest.name} no pair costs more than others", *pairs
    )
    cli.say(f"class frequencies moved by {100 * newest.moved:.1f} % of the cases from validation's, in {newest.name}:")
    shares = zip(found.validation_frequencies, newest.frequencies, newest.frequencies_by_counts, strict=True)
    classes = [(name, *row) for name, row in zip(found.classes, shares, strict=True)]
    classes = sorted(classes, key=lambda row: -abs(row[2] - row[1]))[:ROWS] if len(classes) > ROWS else classes
    cells = [(name, *(f"{100 * share:.1f} %" for share in row)) for name, *row in classes]
    cli.show_table(("validation", "by probabilities", "by counts"), cells)
    if len(found.classes) > ROWS:
        cli.say(f"the {ROWS} that moved most of {len(found.classes):,} classes; --out and --json have all")
    if found.offer:
        cli.say(
            f"a {found.offer.kind} re-calibration on {found.offer.labelled:,} labelled decisions lowers the cross-entropy from "
            f"{found.offer.before:.4f} to {found.offer.after:.4f}; --recalibrate FOLDER writes it as a new model"
        )
    cli.warn(*(f"ALARM {newest.name}: {alarm}" for alarm in newest.alarms), style="red")
