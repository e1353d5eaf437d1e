"""The model that you already have: decisions from a table of its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from csada.cli import common as cli
from csada.cli.fit import Budget, Refer
from csada.errors import InputError, RunError


@cli.app.command()
def decide(
    scores: Annotated[
        Path, Argument(help="A CSV, Parquet or NPZ file: id, label, p:CLASS (or z:CLASS) of each class.")
    ],
    costs: cli.Costs,
    out: Annotated[Path, Option(help="The file to write: one decision per row.")] = Path("decisions.csv"),
    budget: Budget = 0.5,
    refer: Refer = None,
    save: Annotated[
        Path | None, Option(help="A folder: keeps the rule, for report, predict, export and others.")
    ] = None,
    as_json: cli.AsJson = False,
) -> None:
    """Decide by cost from the scores of any model, in a table: p:CLASS are probabilities, z:CLASS are logits.

    Rows with a label are for calibration and for the choice of the rule (validation) and for the evidence (test): half of
    them each, by a hash of their id, or as a column named part says. Rows without one are decided. The file to write has the
    columns id, predicted, expected_cost and referred.

    Example: csada decide scores.csv --costs costs.csv --out decisions.csv
    """
    import csv

    from csada.data.scores import NONE, read
    from csada.files import whole
    from csada.folders import reserved
    from csada.report.card import verdict
    from csada.workflow import scores as workflow
    from csada.workflow.settings import costs_for

    if out.is_dir():
        raise InputError(f"{out} is a folder; name the file to write, such as {out / 'decisions.csv'}")
    table = read(scores)
    classifier = workflow.fitted(table, costs_for(costs, table.classes), budget=budget, refer=refer)
    referred = 0
    try:
        with whole(out) as partial, partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(workflow.Row._fields)
            for row in workflow.decided(classifier, table):
                referred += row.referred
                words = f"{row.expected_cost:.6g}", str(row.referred).lower()
                writer.writerow((row.id, row.predicted, *words))
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}") from None
    if save is not None:
        with reserved(save) as folder:
            classifier.save(folder)
    evidence, labelled = classifier.evidence, int((table.labels != NONE).sum())
    if as_json:
        found: dict[str, Any] = {"file": str(out), "samples": len(table), "labelled": labelled, "referred": referred}
        found |= {"calibrated": evidence is not None, "decision": classifier.decision}
        if evidence is not None:
            found |= {"rows": cli.row_numbers(evidence), "chosen": evidence.chosen, "verdict": verdict(evidence)}
        cli.show_json(found)
        return
    if evidence is None:
        enough = f"{labelled:,} rows are labelled: too few" if labelled else "no row is labelled"
        cli.warn(
            f"{enough}, so the scores are taken as they are: nothing is calibrated, and nothing is known of what the rule "
            f"saves. Labels for {2 * workflow.FEWEST} rows or more change that."
        )
    else:
        cli.show_rows(evidence)
        cli.say(verdict(evidence))
    share = f"; {referred:,} are left to a person" if referred else ""
    cli.say(f"{len(table):,} rows decided, {labelled:,} of them with a label{share}")
    cli.show_files([out, *([save] if save else [])])
