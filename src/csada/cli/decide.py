"""The model that you already have: decisions from a table of its scores."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from csada.cli import common as cli
from csada.cli.fit import Budget, LimitsFile, Refer
from csada.errors import InputError


@cli.command()
def decide(
    context: Context,
    scores: Annotated[
        Path, Argument(help="A CSV, Parquet or NPZ file: id, label, p:CLASS (or z:CLASS) of each class.")
    ],
    costs: Annotated[str | None, Option(help=cli.COSTS)] = None,
    out: Annotated[Path, Option(help="The file to write: one decision per row.")] = Path("decisions.csv"),
    budget: Budget = 0.5,
    refer: Refer = None,
    limits: LimitsFile = None,
    rule: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Decide by a rule that --save kept, with its costs; nothing is fitted."),
    ] = None,
    log: Annotated[Path | None, Option(help="Also append the decisions to this file, for csada monitor.")] = None,
    save: Annotated[
        Path | None, Option(help="A folder: keeps the rule, for report, predict, export and others.")
    ] = None,
    force: cli.Force = False,
    as_json: cli.AsJson = False,
) -> None:
    """Decide by cost from the scores of any model, in a table: p:CLASS are probabilities, z:CLASS are logits.

    Rows with a label are for calibration and for the choice of the rule (validation) and for the evidence (test): half of
    them each, by a hash of their id, or as a column named part says. Rows without one are decided. The file to write has the
    columns id, predicted, expected_cost and referred.

    New scores of the same model are decided with --rule FOLDER instead of --costs; --log keeps their decisions for monitor.

    Example: csada decide scores.csv --costs costs.csv --out decisions.csv
    """
    import csv

    from csada.classifier import Classifier
    from csada.data.scores import NONE, read
    from csada.decisions import Limits
    from csada.files import replaceable
    from csada.folders import reserved
    from csada.logbook import Log
    from csada.report.card import limit_lines, verdict
    from csada.rows import cell
    from csada.workflow import scores as workflow
    from csada.workflow.settings import costs_for

    replaceable(out, "table of decisions", force=force)
    if costs is None and rule is None:
        raise InputError(
            "give --costs to make a rule from this table, or --rule FOLDER to decide by one that was saved"
        )
    of_new = ("costs", "budget", "refer", "limits", "save")
    given = [name for name in of_new if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if rule is not None and given:  # what a project file says for all commands is no contradiction
        raise InputError(f"--{given[0]} is for a new rule; leave it out, or leave out --rule")
    table = read(scores)
    if rule is not None:
        classifier = Classifier.load(rule)
    else:
        known = None if limits is None else Limits.read(limits)
        own = costs_for(str(costs), table.classes)
        classifier = workflow.fitted(table, own, budget=budget, refer=refer, limits=known)
    referred = 0
    with (
        nullcontext() if log is None else Log(log, classifier.fingerprint, classifier.classes) as book,
        cli.output(out) as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(workflow.Row._fields)
        for row in workflow.decided(classifier, table, book):
            referred += row.referred
            words = f"{row.expected_cost:.6g}", str(row.referred).lower()
            writer.writerow((cell(row.id), cell(row.predicted), *words))
    if save is not None:
        with reserved(save) as folder:
            classifier.save(folder)
    evidence, labelled = classifier.evidence, int((table.labels != NONE).sum())
    if as_json:
        found: dict[str, Any] = {"file": str(out), "samples": len(table), "labelled": labelled, "referred": referred}
        found |= {"calibrated": evidence is not None, "decision": classifier.decision}
        if evidence is not None:
            found |= cli.evidence_numbers(evidence)
        cli.show_json(found)
        return
    if evidence is None and rule is None:
        enough = f"{labelled:,} rows are labelled: too few" if labelled else "no row is labelled"
        cli.warn(
            f"{enough}, so the scores are taken as they are: nothing is calibrated, and nothing is known of what the rule "
            f"saves. Labels for {2 * workflow.CALIBRATING} rows or more change that."
        )
    elif evidence is not None and rule is None:
        cli.show_rows(evidence)
        cli.say(*limit_lines(evidence), verdict(evidence))
    share = f"; {referred:,} are left to a person" if referred else ""
    cli.say(f"{len(table):,} rows decided, {labelled:,} of them with a label{share}")
    cli.show_files([out, *filter(None, (log, save))])
