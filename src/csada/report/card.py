"""The verdict on a classifier in words, the same on screen, in the report and on the card; and the card itself, in Markdown.

Which row to use was decided on validation; the test part only says what came of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from csada.decisions import Decision
from csada.decisions.acceptance import JOINTLY, Looked
from csada.evidence import ROWS, Evidence
from csada.metrics import Evaluation, at_most

SHOWN = 5  # pairs that are named


def verdict(evidence: Evidence) -> str:
    """Three sentences: what to use; what that achieves on test; whether that is proven. More where cases are referred, or
    samples were seen.
    """
    row, start = evidence.chosen, evidence.test["before"]
    use = evidence.test[row]
    itself = f" on the {100 * use.coverage:.1f} % of cases that it decides itself" if use.charged else ""
    costs = f"{_cost(use)} per 100 predictions (95 %: {_interval(use)}) at {100 * use.accuracy:.2f} % accuracy{itself}"
    referral = use.referral or "No test case is left to a person." * bool(evidence.refer)
    flattered = f"{evidence.seen:,} validation and test samples were in its training data, which flatters all numbers."
    priors = "The rule is for other class frequencies than those of the data; these numbers are at the data's own, and "
    priors += "CHANGES.md has the cost at those of deployment."
    priors *= evidence.decision.priors is not None
    kept = "Of the rules that were found to keep the limits on validation it is the cheapest." * bool(evidence.limits)
    more = "".join(f" {text}" for text in (kept, referral, flattered * (evidence.seen > 0), priors) if text)
    if row == "before":
        return (
            f"Keep the model as it was. On test it costs {costs}. Nothing is saved: on validation nothing else costs less "
            f"within {evidence.budget:g} points of accuracy.{more}"
        )
    low, high = evidence.change("before", row)
    change = f"{100 * (use.mean_cost - start.mean_cost):+.2f} per 100 predictions (95 %: {low:+.2f} to {high:+.2f})"
    proven = "an increase beyond chance" if low > 0 else "not proven by these samples"
    return (
        f"Use {ROWS[row]}. On test it costs {costs}; the model as it was costs {_cost(start)} at "
        f"{100 * start.accuracy:.2f} %. The change, {change}, is "
        f"{'a saving beyond chance' if high < 0 else proven}.{more}"
    )


def card(
    evidence: Evidence,
    takes: str,
    members: Sequence[tuple[str, float, float]] = (),
    views: Sequence[str] = (),
    looked: Looked | None = None,
) -> str:
    """The whole card; `takes` says what a sample looks like, `members` each one's architecture, temperature and weight.

    looked: what `csada check` found.
    """
    costs, about = evidence.costs, evidence.environment
    names = [escaped(name) for name in costs.classes]
    samples = {part: f"{count:,}" for part, count in evidence.samples.items()}
    epochs = len(evidence.history)
    trained = f"trained further with the method {escaped(evidence.method)} for {epochs} epoch{'s' * (epochs > 1)}"
    if evidence.method == "auto":
        trained = f"an average of networks, trained for {epochs} epochs in all"
    paragraphs = [
        f"# {escaped(evidence.data)}: a classifier that knows what mistakes cost",
        f"A {escaped(evidence.architecture)} for {len(costs)} classes: {ROWS[evidence.chosen]}"
        f"{f' ({trained})' if evidence.chosen.startswith('after') else ''}. It takes samples of {escaped(takes)}.",
        verdict(evidence),
        on_features(evidence) if "features" in evidence.options else "",
        listed(map(escaped, limit_lines(evidence))),
        *(networks(members, views) if len(members) > 1 or len(views) > 1 else ()),
        f"Classes: {', '.join(names)}.",
        f"Data: {escaped(evidence.data)}; {samples['train']} training, {samples['validation']} validation and "
        f"{samples['test']} test samples.",
        "## What mistakes cost",
        "The costliest; costs.csv has them all:",
        listed(f"{names[y]} labelled as {names[z]} costs {costs[y, z]:.4g}" for y, z in costs.top_pairs(SHOWN)),
        "" if costs.referral_cost is None else f"Leaving a case to a person costs {costs.referral_cost:g}.",
        "## How it decides",
        in_words(evidence.decision),
        "## Results",
        *results(evidence),
        *(acceptance(looked) if looked else ()),
        "## What this does not show",
        listed(limits(evidence.test[evidence.chosen], names)),
        "## How to use it",
        "With FOLDER for the folder that holds this file:",
        "```\ncsada predict FOLDER INPUTS\ncsada export FOLDER\ncsada report FOLDER\n```",
        f"Made {evidence.started} with csada {about.csada}, Python {about.python}, PyTorch "
        f"{about.packages.get('torch', 'unknown')}, on {escaped(about.device)}, in {evidence.seconds:,.0f} s of training.",
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def table(*lines: str) -> str:
    """Of lines without the bars at their ends."""
    return "\n".join(f"| {line} |" for line in lines)


def on_features(evidence: Evidence) -> str:
    backbone = escaped(evidence.options["features"])
    return (
        f"Only heads were trained, on features of a frozen {backbone}: attacks changed these features, not the samples."
    )


def inference(passes: int) -> str:
    """What a prediction takes."""
    if passes == 1:
        return "A prediction takes one forward pass."
    return (
        f"A prediction takes {passes} forward passes, one per network and view: {passes} times as long as one network."
    )


def networks(members: Sequence[tuple[str, float, float]], views: Sequence[str]) -> list[str]:
    rows = [f"{i} | {escaped(name)} | {t:.4g} | {weight:.4g}" for i, (name, t, weight) in enumerate(members, 1)]
    averaged = (
        f"Their probabilities are averaged, over these views of a sample: {', '.join(views)}. "
        f"{inference(len(members) * len(views))}"
    )
    return [table("member | network | temperature | weight", "---: | --- | ---: | ---:", *rows), averaged]


def results(evidence: Evidence) -> list[str]:
    """The table of the rows; choices were made on validation, test was looked at once."""
    validation, test = evidence.validation, evidence.test
    refers = any(e.referred for e in (*validation.values(), *test.values()))
    headings = ["", "accuracy, validation", "cost, validation", "accuracy, test", "cost, test", "95 %"]
    headings += ["decided itself, test"] * refers
    lines = [" | ".join(headings), " | ".join(["---", *["---:"] * (len(headings) - 1)])]
    for row, e in test.items():
        cells = [f"**{row}**" if row == evidence.chosen else row, f"{100 * validation[row].accuracy:.2f} %"]
        cells += [_cost(validation[row]), f"{100 * e.accuracy:.2f} %", _cost(e), _interval(e)]
        lines.append(" | ".join([*cells, *[f"{100 * e.coverage:.1f} %"] * refers]))
    among = " of the rows that can refer cases" * evidence.must_refer
    chosen = f"On validation the row in bold costs least{among} within {evidence.budget:g} points of accuracy, counted as the "
    chosen += "rows are saved; the numbers shown there are of rules that were fitted on the other samples."
    if evidence.limits is not None:
        chosen = "The row in bold is the cheapest rule that validation shows to keep the limits."
    if (judged := len(evidence.labels("validation"))) > evidence.samples["validation"]:
        chosen += f" Validation is small, so it means here {judged:,} training and validation samples, each scored by networks"
        chosen += " that were trained without it."
    told = f"Cost per 100 predictions, with its 95 % interval on test. {chosen}"
    return [table(*lines), told, test[evidence.chosen].referral]


def limit_lines(evidence: Evidence) -> list[str]:
    """One line per limit: what validation shows of the chosen row, and what came of it on test."""
    pairs = zip(evidence.judged(evidence.chosen), evidence.judged(evidence.chosen, "test"), strict=True)
    return [
        f"{shown.limit}: {'kept' if shown.kept else 'not shown'}, {shown.limit.share(shown.bound)} by {shown.bad:,} bad of "
        f"{shown.samples:,} on validation ({100 * shown.limit.confidence:g} % sure); {came.limit.share(came.rate)} by "
        f"{came.bad:,} of {came.samples:,} on test"
        for shown, came in pairs
    ]


def acceptance(looked: Looked) -> list[str]:
    """The verdict on every criterion, and costs by group."""
    check = looked.check
    rows = [
        f"{escaped(c.title)} | {c.at} {100 * c.limit:.4g} % | {c.bad:,} of {c.samples:,} | {c.at} {100 * c.bound:.3g} % "
        f"| {c.verdict}"
        for c in check.results
    ]
    groups = [
        f"{escaped(g.name)}: {g.samples:,} samples, cost per 100 predictions {100 * g.mean_cost:.2f}"
        + "".join(f"; {escaped(f'{p.truth} labelled as {p.predicted}')}: {p.errors} of {p.samples}" for p in g.pairs)
        for g in check.groups
        if g.mean_cost is not None
    ]
    return [
        "## Acceptance",
        f"**{check.verdict}**: {check.told()}",
        table("criterion | limit | bad cases | proven | verdict", "--- | --- | ---: | ---: | ---", *rows),
        *(["By group:", listed(groups)] if groups else ()),
        f"{JOINTLY} {looked.history}".rstrip(),
    ]


def unproven(evidence: Evidence) -> str:
    """One sentence on what the test part leaves open, even where a saving is beyond chance."""
    pairs = [pair for pair in evidence.test[evidence.chosen].top_pairs(1) if pair.samples]
    worst = "".join(
        f"that {pair.truth} is rarely labelled as {pair.predicted} ({pair.errors} of {pair.samples} test samples: up to "
        f"{100 * at_most(pair.errors, pair.samples):.1f}\u00a0% is possible), or "
        for pair in pairs
    )
    return f"Not proven: {worst}that samples from other cameras, places or times cost the same."


def limits(test: Evaluation, names: list[str]) -> list[str]:
    """What the test part is too small, or too narrow, to say."""
    unseen = [name for name, count in zip(names, test.confusion.sum(1), strict=True) if count == 0]
    lines = [f"Nothing is known about {', '.join(unseen)}: no test sample of it was decided."] if unseen else []
    lines += [
        f"{names[test.costs.index(pair.truth)]} labelled as {names[test.costs.index(pair.predicted)]}: "
        f"{pair.errors} of {pair.samples}, so at most {100 * at_most(pair.errors, pair.samples):.1f} % (one-sided 95 %)."
        for pair in test.top_pairs(SHOWN)
        if pair.samples
    ]
    return [
        *lines,
        "All numbers are from samples like those it was trained on; other cameras, places or times may give others.",
        "It is no medical device and no safety component: where a mistake can do harm, a person has to check it.",
    ]


def in_words(rule: Decision) -> str:
    above = rule.refer_above
    person = "" if above is None else f" Cases that are expected to cost more than {above:.3g} are left to a person."
    if rule.multipliers is not None:
        person = "" if above is None else f" Cases for which both together exceed {above:.3g} are left to a person."
        return f"It takes the class of least expected cost and what the limits charge on top of it (`multipliers`).{person}"
    if rule.strength == 0:
        return f"It takes the most probable class.{person}"
    return (
        f"It takes the class of least expected cost, with strength {rule.strength:.3g} (0: the most probable class, 1: the "
        f"costs alone) and probabilities at temperature {rule.temperature:.3g}.{person}"
    )


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#])", r"\\\1", " ".join(str(text).split()))


def _cost(e: Evaluation) -> str:
    return f"{100 * e.mean_cost:.2f}"


def _interval(e: Evaluation) -> str:
    low, high = e.interval("mean_cost")
    return f"{100 * low:.2f} to {100 * high:.2f}"
