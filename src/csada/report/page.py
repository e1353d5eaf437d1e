"""One HTML page for whoever has to trust the model: what its mistakes cost before and after, and how sure that is.

Everything comes from the evidence that `csada fit` left beside the model; the page needs neither the data nor the network.
What the evidence lacks (a table has no images, a method may have no attack) has no section.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from pathlib import Path
from typing import Any

import jinja2

from csada.decisions.acceptance import JOINTLY, Looked
from csada.evidence import Evidence
from csada.metrics import Evaluation
from csada.report.card import inference, on_features, unproven, verdict
from csada.report.sections import SECTIONS, critical, moment, number, percent, price, signed

CRITICAL = "Critical errors"


def render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digest"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    environment.filters |= {"number": number, "price": price, "percent": percent}
    return environment.get_template(template).render(values)


def page(evidence: Evidence, folder: str = "FOLDER", looked: Looked | None = None) -> str:
    """The page as text. folder: of the saved classifier, as the page's reader may type it. looked: see csada check."""
    headline, _, told = verdict(evidence).partition(". ")
    acceptance = looked and {"title": "Acceptance", "looked": looked, "jointly": JOINTLY}
    sections = {"results": None, "acceptance": acceptance} | {name: build(evidence) for name, build in SECTIONS.items()}
    return render(
        "page.html.j2",
        data=evidence.data,
        headline=headline,
        verdict=told,
        command=f"csada predict {shlex.quote(folder)} INPUTS",
        unproven=unproven(evidence),
        trained=evidence.improved,
        admissions=evidence.admissions if len(evidence.admissions) > 1 else (),
        subject=f"what mistakes cost{', before and after' * (evidence.chosen != 'before' and evidence.improved)}",
        details=details(evidence) + (f" {on_features(evidence)}" if "features" in evidence.options else ""),
        tiles=tiles(evidence),
        sections={name: content for name, content in sections.items() if content},
        started=moment(evidence.started),
    )


def details(evidence: Evidence) -> str:
    """What was done, and what it added to the rule alone; it also says when the training was for nothing."""
    epochs, samples = len(evidence.history), f"{evidence.samples['train']:,} samples"
    model = f"The model ({evidence.architecture}, {len(evidence.costs)} classes)"
    if not evidence.improved:
        also = " Networks were trained from it, but none lowered the cost on validation." if epochs else ""
        return (
            f"{model} was not trained further; a decision rule that knows the costs was fitted to it on validation "
            f"samples.{also}"
        )
    how = f"with the method {evidence.method} for {epochs} epoch{'s' * (epochs > 1)} on {samples}"
    trained = f"{model} was trained further {how}."
    if evidence.method == "auto":
        whole = "the average of the given model and networks that were trained from it"
        whole = f"one network that learned from {whole}" if evidence.options.get("single") else whole
        trained = f"The improved model is {whole}. Training took {epochs} epochs on {samples}."
    low, high = evidence.change("before + rule", "after + rule")
    rival = f"{number(100 * evidence.test['before + rule'].mean_cost)} per 100 predictions"
    if high < 0:
        added = "training made it cheaper than that"
    elif low > 0:
        added = "cheaper than the improved model with its rule"
    else:
        added = "these samples cannot tell it from the improved model with its rule"
    return (
        f"{trained} The decision rule alone, on the model as it was, costs {rival}: {added} (95\u00a0% interval of what "
        f"training adds to the rule: {signed(low)} to {signed(high)}). {inference(evidence.passes)}"
    )


def tiles(evidence: Evidence) -> list[tuple[str, str, str, str]]:
    """Name, value before ("" where it is the same model), value after, note."""
    start, end, rival = (evidence.test[name] for name in ("before", evidence.chosen, "before + rule"))
    points = f"{signed(100 * (end.accuracy - start.accuracy))} points"
    points += f", on {percent(end.coverage, 1)} of the cases" if end.charged else ""
    was, now, alone = (number(100 * e.mean_cost) for e in (start, end, rival))
    found = [
        ("Cost per 100 predictions", was, now, _less(start, end)),
        ("Accuracy", percent(start.accuracy, 1), percent(end.accuracy, 1), points),
    ]
    if pairs := critical(start):
        first, last = (str(sum(pair.errors for pair in critical(e))) for e in (start, end))
        where = f"on the {len(pairs)} costliest pairs" if len(pairs) > 1 else "on the costliest pair"
        found.append((CRITICAL, first, last, where))
    if end.referred:
        price = end.costs.referral_cost
        paid = f"of {end.samples:,}, {'price not given' if price is None else f'at {price:g} each'}"
        found.append(("Left to a person", "", f"{end.referred:,}", paid))
    if evidence.chosen == "before":
        found = [(name, "", now, note if name == CRITICAL else "") for name, _, now, note in found]
    if evidence.chosen != "before + rule":
        found.append(("Rule alone, no training", was, alone, "cost per 100 predictions"))
    return found


def _less(before: Evaluation, after: Evaluation) -> str:
    was, now = before.mean_cost, after.mean_cost
    if was == now:
        return "no change"
    share = abs(1 - now / was) if was else 0.0
    return f"{percent(share, int(0.99 < share < 1))} {'less' if now < was else 'more'}" if was else "up from nothing"
