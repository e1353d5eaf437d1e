"""Costs: a template with the data's own class names, and what a filled-in file says, in words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from csada.cli import common as cli
from csada.errors import InputError

if TYPE_CHECKING:
    from csada.costs import CostMatrix

costs_app = typer.Typer(no_args_is_help=True, help="What mistakes cost: write a template, check a file, merge experts.")
cli.app.add_typer(costs_app, name="costs")

SHOWN = 10  # of the costliest mistakes
Overwrite = Annotated[bool, Option("--force", help="Overwrite an existing file.")]
FEW = 30  # test samples below which hardly anything can be proven about a class
WIDE = 1000  # a factor between costs above which the small ones hardly count

IN_WORDS = """\
What each mistake costs. The truth comes first, then the prediction.
Any unit will do (money, harm, minutes); only the ratios matter. A right answer costs 0.
Lines that start with # are comments. When you are done: csada costs check {file}
"""
LIST_IN_WORDS = """
The line *,*,{default} is every mistake that is not listed. Add a line for each mistake that costs more or less, such as
  {truth},{predicted},10,why this is bad
A star stands for every class: {truth},*,5 is any mistake on {truth}. The more exact line wins.
Keep the lines in which truth and prediction are the same: they say which classes there are.
If a person can decide doubtful cases, say what that costs: *,(refer),0.5,somebody looks
"""
TABLE_IN_WORDS = """
Rows are the truth, columns the prediction: 10 in row {truth}, column {predicted}
is paid when {truth} is labelled as {predicted}.
If a person can decide doubtful cases, say what that costs in a last row: (refer),0.5
"""


@costs_app.command("new")
def costs_new(
    data: cli.DataSet,
    out: Annotated[Path, Option("--out", help="The file to write.")] = Path("costs.csv"),
    default: Annotated[float, Option(min=0, help="What a mistake costs that is not listed.")] = 1.0,
    matrix: Annotated[bool, Option("--matrix", help="A square table instead of a list of mistakes.")] = False,
    force: Overwrite = False,
    data_dir: cli.DataDir = None,
    label: cli.Label = None,
    ignore: cli.Ignore = None,
) -> None:
    """A template for the costs, with the data's class names: a list of mistakes, or a square table.

    Example: csada costs new photos --out costs.csv
    """
    from csada.data import counts

    free(out, force)

    write_template(
        out, counts(data, data_dir, **cli.given(label=label, ignore=ignore))["train"], default, matrix=matrix
    )
    cli.show_files([out])


def free(out: Path, force: bool) -> None:
    """Costs are work: not even those that csada wrote are replaced unasked."""
    if out.exists() and not force:
        raise InputError(f"{out} is there already; --force overwrites it, --out names another file")


def write_template(out: Path, classes: Iterable[str], default: float = 1.0, *, matrix: bool = False) -> None:
    from csada.costs import CostMatrix

    template = CostMatrix.from_pairs(tuple(classes), {}, default)
    truth, predicted, *_ = map(_quoted, template.classes)
    words = IN_WORDS + (TABLE_IN_WORDS if matrix else LIST_IN_WORDS)
    comment = words.format(file=out.name, default=f"{default:g}", truth=truth, predicted=predicted)
    template.to_csv(out, as_list=not matrix, comment=comment)


def _quoted(name: str) -> str:
    """As it stands in a CSV file."""
    from csada.rows import cell

    name = cell(name)
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"') else name


@costs_app.command("check")
def costs_check(
    costs: Annotated[str, Argument(help="A CSV file of costs, or pmi.", metavar="FILE")],
    data: Annotated[str | None, Option(help="The data the costs are for: names and test samples.")] = None,
    data_dir: cli.DataDir = None,
    label: cli.Label = None,
    ignore: cli.Ignore = None,
    as_json: cli.AsJson = False,
) -> None:
    """Repeat a file of costs in words, and warn of what is odd about it.

    Example: csada costs check costs.csv --data photos
    """
    table, test = read_costs(costs, data, data_dir, **cli.given(label=label, ignore=ignore))
    found = examine(table, test)
    if as_json:
        cli.show_json({"file": costs} | found)
        return

    scale, costliest = found["costs"], found["costliest"]
    lines = [
        f"{costs}: {len(table)} classes, {scale['mistakes']:,} possible mistakes; they cost {scale['smallest']:g} to "
        f"{scale['largest']:g}, {scale['mean']:.4g} on average. A right answer costs 0.",
        f"The truth comes first (the row of a table, the first name in a list): {found['orientation']}.",
    ]
    if table.referral_cost is not None:
        lines += [f"Leaving a case to a person costs {table.referral_cost:g}."]
    if costliest:
        lines += ["If that is the wrong way round, swap truth and prediction in the file.", "\nThe costliest mistakes:"]
        lines += [f"  {pair['truth']} labelled as {pair['predicted']} costs {pair['cost']:g}" for pair in costliest]
        lines += [f"  and {found['ties']:,} more at {costliest[-1]['cost']:g}"] if found["ties"] else []
        lines += [
            f"{found['uneven']:,} of {scale['mistakes'] // 2:,} pairs of classes cost more one way than the other."
        ]
    notes = [f"\nNote: {warning}." for warning in found["warnings"]]
    if found["unproven"]:
        notes += ["\nNote: few test samples. What a test without a single such mistake would prove (95 %):"]
        for line in found["unproven"]:
            proven = f"at most {100 * line['at_most']['high']:.1f} % are" if line["samples"] else "nothing about those"
            notes += [f"  {line['truth']}, {line['samples']} samples: {proven} labelled as {line['predicted']}"]
        notes += ["  300 samples would prove 1 %."]
    cli.say(*lines)
    cli.say(*notes, style="yellow")


def read_costs(
    costs: str, data: str | None, data_dir: Path | None = None, **own: Any
) -> tuple[CostMatrix, dict[str, int] | None]:
    """The costs, in the order of the data's classes, and the data's test samples by class."""
    from csada.costs import CostMatrix

    is_file = Path(costs).exists()
    if data is None:
        return (CostMatrix.preset(costs) if costs == "pmi" and not is_file else CostMatrix.from_csv(costs)), None
    from csada.data import counts
    from csada.workflow.settings import costs_for

    test = counts(data, data_dir, **own)["test"]
    return costs_for(costs, tuple(test)), test


def examine(costs: CostMatrix, test: dict[str, int] | None = None) -> dict[str, Any]:
    """What there is to say about costs; `test` counts the test samples of each class."""
    from csada.metrics import named_bound

    names, values = costs.classes, costs.values
    mistakes = costs.mistakes
    smallest, largest = float(mistakes.min()), float(mistakes.max())
    shown = costs.critical_pairs(SHOWN)
    last = [values[pair] for pair in shown].count(values[shown[-1]]) if shown else 0
    ties = int((mistakes == values[shown[-1]]).sum()) - last if shown else 0

    uneven = int((values > values.T).sum())
    y, z = costs.top_pairs(1, by="asymmetry" if uneven else "cost")[0]
    orientation = f"{values[y, z]:g} is paid when {names[y]} is labelled as {names[z]}"
    orientation += f", {values[z, y]:g} when {names[z]} is labelled as {names[y]}"

    warnings = []
    if largest == 0:
        warnings += ["no mistake costs anything; fill in what they cost"]
    elif smallest == largest:
        warnings += ["all mistakes cost the same, so there is nothing to do: accuracy is the right measure"]
    else:
        least = float(mistakes[mistakes > 0].min())
        if largest > WIDE * least:
            warnings += [
                f"the costliest mistake costs {largest / least:,.0f} times as much as the cheapest that costs anything: the "
                "cheap ones will hardly count; if they should, bring the costs closer together (or fit with --set tau=0.5)"
            ]
        for k, name in enumerate(names):
            if not values[k].any():
                warnings += [f"mistakes on {name} are free: any wrong label of it costs 0"]
            if not values[:, k].any():
                warnings += [
                    f"labelling anything as {name} is free: a rule that avoids costs would always answer {name}"
                ]
    price = costs.referral_cost
    if price == 0:
        warnings += ["leaving a case to a person is free: every case that leaves any doubt would be referred"]
    elif price is not None and price >= largest > 0:
        warnings += [f"leaving a case to a person costs {price:g}, no less than any mistake: no case would be referred"]
    unproven = [
        {"truth": names[y], "predicted": names[z], "samples": (n := test[names[y]]), "at_most": named_bound(0, n)}
        for y, z in shown
        if test is not None and test[names[y]] < FEW
    ]
    return {
        "classes": list(names),
        "orientation": orientation,
        "referral_cost": price,
        "costs": {"mistakes": mistakes.size, "smallest": smallest, "largest": largest, "mean": float(mistakes.mean())},
        "costliest": [{"truth": names[y], "predicted": names[z], "cost": float(values[y, z])} for y, z in shown],
        "ties": int(ties),
        "uneven": uneven,
        "warnings": warnings,
        "unproven": unproven,
    }
