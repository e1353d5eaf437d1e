"""One HTML page for whoever has to trust the model: what its mistakes cost before and after, and how sure that is.

Everything comes from what `csada fit` left in its folder: counts, logits, a few images. The page needs nothing else, neither
the data nor the network. What the folder lacks (a table has no images, a method may have no attack) has no section.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from csada import decisions
from csada.costs import CostMatrix, Pair
from csada.decisions import Abstention, MinimumExpectedCost
from csada.errors import InputError
from csada.metrics import REFER, Evaluation, Interval, PairError, at_most, bootstrap_paid
from csada.report import card, charts
from csada.report.charts import Axis, Cell, Line, Mark

RECORD, EVIDENCE = "record.json", "evidence.npz"
KEYS = (
    *("data", "start", "model", "method", "options", "costs", "budget", "decision"),
    *("rows", "rules", "history", "environment", "seconds", "started"),
)
START, RIVAL, END = "before", "before + rule", "after + rule"  # what the user had, what comes for free, what was saved
COMPARISONS = ((START, END), ("before", "after"), (RIVAL, END))
EXAMPLES = ("original_images", "adversarial_images", "examples", "perturbations")
OUTCOMES = ("reached", "exhausted", "rejected", "skipped")
CRITICAL = 3  # pairs that count as critical
LISTED = 10  # pairs in a table
NOTABLE = 0.01  # a loss of accuracy that must not be overlooked
SIDE = 192  # pixels: larger images are made smaller

Rule = MinimumExpectedCost | Abstention
Array = NDArray[Any]


@dataclass(frozen=True)
class Evidence:
    """A folder that `csada fit` has written, read and checked once."""

    record: Mapping[str, Any]
    arrays: Mapping[str, Array]
    costs: CostMatrix
    rows: Mapping[str, Evaluation]  # before, before + rule, after, after + rule: on the test part
    rules: Mapping[str, Rule]  # of "before" and "after"; the latter is the saved model's

    @classmethod
    def of(cls, record: Mapping[str, Any], arrays: Mapping[str, Array]) -> Evidence:
        if missing := [key for key in KEYS if key not in record]:
            raise KeyError(missing[0])
        classes = record["data"]["classes"]
        rules = {side: decisions.from_plain(record["rules"][side], classes) for side in ("before", "after")}
        rows = card.evaluations(record)
        needed = (rows[START].samples, len(classes))
        for name in ("before_test", "after_test"):
            if arrays[name].shape != needed or len(arrays["test_labels"]) != needed[0]:
                raise ValueError(f"{name} has shape {arrays[name].shape}, the counts are of {needed}")
        for names in (("mistakes", "mistake_images"), EXAMPLES):
            if len({len(arrays.get(name, ())) for name in names}) > 1:
                raise ValueError(f"{', '.join(names)} differ in length")
        return cls(record, arrays, rows[START].costs, rows, rules)


def read(folder: Path) -> Evidence:
    """What `csada fit` has written into the folder; anything else is refused."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give one that `csada fit` has written")
    path = _present(folder, RECORD)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; run `csada fit` again") from None
    if (kind := record.get("experiment") if isinstance(record, dict) else None) != "fit":
        raise InputError(f"{path} is no record of `csada fit` but of {kind!r}; give the folder of a fitted model")
    path = _present(folder, EVIDENCE)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged archive fails in a dozen ways
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is damaged ({reason}); run `csada fit` again") from None
    try:
        return Evidence.of(record, arrays)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        what = f"{folder}: {RECORD} and {EVIDENCE} do not fit together"
        raise InputError(f"{what}: {reason}; run `csada fit` again") from None


def numbers(evidence: Evidence) -> dict[str, Any]:
    """The key numbers as plain values."""
    rows = {}
    for name, e in evidence.rows.items():
        low, high = e.interval("weighted_error_rate")
        rows[name] = {
            "accuracy": e.accuracy,
            "cost_per_100": 100 * e.weighted_error_rate,
            "interval": [100 * low, 100 * high],
            "critical_errors": sum(pair.errors for pair in critical(e)),
        }
    return {"samples": evidence.rows[END].samples, "rows": rows}


def page(evidence: Evidence) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digest"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    environment.filters["number"] = number
    environment.filters["percent"] = percent
    sections = {name: build(evidence) for name, build in SECTIONS.items()}
    return environment.get_template("page.html.j2").render(
        data=evidence.record["data"],
        summary=summary(evidence),
        tiles=tiles(evidence),
        sections={name: content for name, content in sections.items() if content},
        started=_moment(evidence.record["started"]),
    )


def critical(e: Evaluation, most: int = CRITICAL) -> list[PairError]:
    """The dearest pairs, as far as they are dearer than the cheapest: with equal costs there is none."""
    cheapest = e.costs.values[~np.eye(len(e.costs), dtype=bool)].min()
    return [pair for pair in e.top_pairs(most) if pair.cost > cheapest]


def number(value: float, digits: int = 2) -> str:
    """With fewer decimals where it is large."""
    digits = digits if abs(value) < 100 else min(digits, 1) if abs(value) < 1000 else 0
    return f"{value:,.{digits}f}".replace("-", "−")


def signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)


def percent(value: float, digits: int = 2) -> str:
    return f"{number(100 * value, digits)}\u00a0%"


def compact(value: float) -> str:
    """Three digits, for the cells of a map."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def change(evidence: Evidence, first: str, second: str) -> Interval:
    """The 95 % interval of the change in cost per 100: paired, since both decided the same samples."""
    low, high = bootstrap_paid(_paid(evidence, second) - _paid(evidence, first), "weighted_error_rate")
    return Interval(100 * low, 100 * high)


def summary(evidence: Evidence) -> Markup:
    """In words, in one paragraph; it also says when the training was for nothing."""
    record, (start, rival, end) = evidence.record, (evidence.rows[name] for name in (START, RIVAL, END))
    costs = {
        name: f"{number(row['cost_per_100'])} (95\u00a0%: {number(row['interval'][0])} to {number(row['interval'][1])})"
        for name, row in numbers(evidence)["rows"].items()
    }
    model = f"A model ({record['model']['architecture']}, {len(evidence.costs)} classes)"
    epochs = len(record["history"])
    trained = (
        f"{model} was trained further with the method {record['method']} for {epochs} epoch{'s' * (epochs > 1)} on "
        f"{record['data']['samples']['train']:,} samples, to make its expensive mistakes rarer."
    )
    told = [
        trained if epochs else f"{model} was given a decision rule that knows the costs; it was not trained further.",
        f"On {end.samples:,} test samples a hundred predictions cost {costs[START]} before and, with the decision rule, "
        f"{costs[END]} after:",
    ]
    low, high = change(evidence, START, END)
    chance = "beyond what chance explains" if high < 0 or low > 0 else "which chance alone could explain"
    told.append(
        Markup("<strong>{}</strong>, {} (95\u00a0% interval of the change: {} to {}).").format(
            _less(start, end), chance, signed(low), signed(high)
        )
    )
    fell = start.accuracy - end.accuracy
    accuracy = f"{'fell' if fell > 0 else 'rose'} from {percent(start.accuracy)} to {percent(end.accuracy)}"
    accuracy = accuracy if fell else f"stays at {percent(end.accuracy)}"
    strong = "strong" if fell > NOTABLE else "span"
    automatic = f", of the {percent(end.coverage, 1)} of cases that it now decides itself" if end.referred else ""
    told.append(Markup("Accuracy <{0}>{1}</{0}>{2}.").format(strong, accuracy, automatic))
    if epochs:
        low, high = change(evidence, RIVAL, END)
        if high < 0:
            verdict, advice = "training made it cheaper than that", "."
        elif low > 0:
            verdict, advice = "cheaper than the trained model", "; better keep the old model with its rule."
        elif rival.weighted_error_rate > end.weighted_error_rate:
            verdict, advice = "dearer, but these samples cannot tell the two apart", "."
        else:
            verdict, advice = "as good as the trained model", ", and it needs no training."
        told.append(f"The decision rule alone, on the model as it was before, costs {costs[RIVAL]}:")
        told.append(
            Markup("<strong>{}</strong> (95\u00a0% interval of what training adds to the rule: {} to {}){}").format(
                verdict, signed(low), signed(high), advice
            )
        )
    told.append(card.in_words(record["decision"]).replace("It takes", "The saved model takes", 1))
    use, validation = card.recommended(record), {name: parts["validation"] for name, parts in record["rows"].items()}
    if validation[use] != validation[END]:  # two rows may be one and the same
        told.append(f"By the validation samples, which have to choose, the better choice would be {card.ROWS[use]}.")
    return Markup(" ").join(told)


def tiles(evidence: Evidence) -> list[tuple[str, str, str, str]]:
    """Name, value before, value after, note."""
    start, rival, end = (evidence.rows[name] for name in (START, RIVAL, END))
    cost = {e.name: number(100 * e.weighted_error_rate) for e in (start, rival, end)}
    points = signed(100 * (end.accuracy - start.accuracy))
    found = [
        ("Cost per 100 predictions", cost[START], cost[END], _less(start, end)),
        ("Accuracy", percent(start.accuracy, 1), percent(end.accuracy, 1), f"{points} points"),
    ]
    if pairs := critical(start):
        was, now = (str(sum(pair.errors for pair in critical(e))) for e in (start, end))
        found.append(
            ("Critical errors", was, now, f"on the {len(pairs)} dearest pair{'s' * (len(pairs) > 1)} of classes")
        )
    return [*found, ("Rule alone, no training", cost[START], cost[RIVAL], "cost per 100 predictions")]


def results(evidence: Evidence) -> dict[str, Any]:
    found = numbers(evidence)
    most = max(row["interval"][1] for row in found["rows"].values())
    lines = []
    for i, (name, row) in enumerate(found["rows"].items()):
        cost, (low, high) = row["cost_per_100"], row["interval"]
        interval = f"{number(low)} to {number(high)}"
        drawn = charts.whisker(f"cost-{i}", f"{name}: {number(cost)}, {interval}", _side(name), cost, low, high, most)
        referred = evidence.rows[name].referred
        lines.append(row | {"name": name, "low": low, "interval": interval, "whisker": drawn, "referred": referred})
    return {
        "title": "Results",
        "lines": lines,
        "chosen": END,
        "samples": found["samples"],
        "pairs": [f"{p.truth} called {p.predicted} ({compact(p.cost)})" for p in critical(evidence.rows[END])],
        "refers": any(e.referred for e in evidence.rows.values()),
    }


def costs(evidence: Evidence) -> dict[str, Any]:
    table = evidence.costs
    paid = table.values[table.values > 0]
    least, largest = (float(paid.min()), float(paid.max())) if len(paid) else (0.0, 0.0)
    cells = {
        (y, z): Cell(
            "cost",
            0.08 + 0.87 * float(np.sqrt((cost - least) / ((largest - least) or 1.0))),
            compact(cost),
            f"{truth} called {called}: {cost:g}",
        )
        for y, truth in enumerate(table.classes)
        for z, called in enumerate(table.classes)
        if (cost := float(table.values[y, z])) > 0
    }
    title = f"What each mistake costs, from {compact(least)} to {compact(largest)}"
    return {
        "title": "What mistakes cost",
        "map": charts.heat_map("costs-map", title, table.classes, table.classes, cells, 640),
    }


def confusion(evidence: Evidence) -> dict[str, Any]:
    classes = evidence.costs.classes
    panels = []
    for i, pair in enumerate(COMPARISONS):
        counts = [np.array(evidence.record["rows"][name]["test"]) for name in pair]
        width = max(table.shape[1] for table in counts)  # one more than classes where a row refers cases to a person
        before, after = (np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in counts)
        columns = [*classes, "referred"][:width]
        largest = max(_largest_mistake(before), _largest_mistake(after))
        shown = (
            (pair[0], f"Confusion counts, {pair[0]}", _counted(evidence, before, columns, largest)),
            (pair[1], f"Confusion counts, {pair[1]}", _counted(evidence, after, columns, largest)),
            ("change", f"Change of the counts from {pair[0]} to {pair[1]}", _changed(before, after, columns)),
        )
        maps = [
            (name, charts.heat_map(f"confusion-{i}-{j}", title, classes, columns, cells))
            for j, (name, title, cells) in enumerate(shown)
        ]
        panels.append({"label": " → ".join(pair), "maps": maps})
    return {"title": "Who is taken for whom", "panels": panels}


def mistakes(evidence: Evidence) -> dict[str, Any] | None:
    e, names = evidence.rows[END], evidence.costs.classes
    images, facts = (evidence.arrays.get(name, ()) for name in ("mistake_images", "mistakes"))
    cards = [
        {
            "image": picture(image),
            "index": index,
            "truth": names[y],
            "predicted": names[z],
            "cost": compact(evidence.costs[y, z]),
        }
        for image, (index, y, z) in zip(images, np.asarray(facts).tolist(), strict=True)
    ]
    left = e.costliest_pairs(LISTED)
    return (
        {"title": "Most expensive mistakes left", "cards": cards, "pairs": left, "total": e.total_cost}
        if left
        else None
    )


def pairs(evidence: Evidence) -> dict[str, Any] | None:
    sides = [critical(evidence.rows[name], LISTED) for name in (START, END)]
    most = max((at_most(p.errors, p.samples) for side in sides for p in side if p.samples), default=1.0)
    lines = []
    for i, both in enumerate(zip(*sides, strict=True)):
        cells = []
        for kind, pair in zip(("before", "after"), both, strict=True):
            bound = at_most(pair.errors, pair.samples) if pair.samples else 1.0
            told = f"{kind}: {pair.errors} of {pair.samples}, at most {percent(bound, 1)}"
            drawn = charts.whisker(f"pair-{i}-{kind}", told, kind, pair.rate, 0.0, bound, most) if pair.samples else ""
            cells.append({"pair": pair, "bound": bound, "whisker": drawn})
        lines.append(cells)
    return {"title": "Critical pairs", "lines": lines, "critical": len(critical(evidence.rows[END]))} if lines else None


def frontier(evidence: Evidence) -> dict[str, Any]:
    lines = []
    for side, rule in evidence.rules.items():
        curve = decisions.frontier(evidence.arrays[f"{side}_test"], evidence.arrays["test_labels"], _inner(rule))
        x, y = 100 * curve.accuracy, 100 * curve.weighted_error_rate
        points = zip(curve.strength, x, y, strict=True)
        hover = [f"{side}, strength {s:.3g}: accuracy {a:.2f} %, cost {number(c)}" for s, a, c in points]
        lines.append(Line(f"{side}, every strength", side, x, y, hover))
    marks = []
    for name in ("before", "after", RIVAL, END):  # the legend has two columns, one a model
        accuracy, cost = 100 * evidence.rows[name].accuracy, 100 * evidence.rows[name].weighted_error_rate
        shape = "diamond" if "rule" in name else "disc"
        hover_text = f"{name}: accuracy {accuracy:.2f} %, cost {number(cost)}"
        marks.append(Mark(name, _side(name), shape, accuracy, cost, hover_text))
    title = "Cost against accuracy for every strength of the rule"
    axes = Axis("accuracy on the test part (%)"), Axis("cost per 100 predictions")
    return {"title": "Cost and accuracy", "chart": charts.line_chart("frontier-chart", title, *axes, lines, marks)}


def coverage(evidence: Evidence) -> dict[str, Any]:
    lines, labels = [], evidence.arrays["test_labels"]
    for side, rule in evidence.rules.items():
        curve = decisions.cost_coverage_curve(evidence.arrays[f"{side}_test"], labels, _inner(rule))
        kept = np.unique(np.linspace(0, len(labels) - 1, 200).round().astype(int))
        x, y = 100 * curve.coverage[kept], 100 * curve.cost[kept]
        hover = [f"{side} + rule: {a:.0f} % automatic, cost {number(c)} per 100" for a, c in zip(x, y, strict=True)]
        lines.append(Line(f"{side} + rule", side, x, y, hover))
    title = "Cost of the cases decided automatically, by their share"
    axes = Axis("decided automatically (%), surest first", from_zero=True), Axis("cost per 100 of them", from_zero=True)
    drawn = charts.line_chart("coverage-chart", title, *axes, lines)
    return {"title": "Leaving doubtful cases to a person", "chart": drawn}


def examples(evidence: Evidence) -> dict[str, Any] | None:
    arrays, names = evidence.arrays, evidence.costs.classes
    cards = []
    columns = (arrays.get(name, ()) for name in EXAMPLES)
    for original, changed, (truth, target), (largest, length) in zip(*columns, strict=True):
        difference = changed.astype(np.int16) - original
        factor = 127 // int(np.abs(difference).max()) if difference.any() else 1
        amplified = (128 + factor * difference).clip(0, 255).astype(np.uint8)
        cards.append(
            {
                "truth": names[truth],
                "target": names[target],
                "images": [
                    ("original", picture(original)),
                    (f"change × {factor}" if difference.any() else "change: none to see", picture(amplified)),
                    ("adversarial", picture(changed)),
                ],
                "largest": f"{largest:.3g}",
                "length": f"{length:.3g}",
            }
        )
    return {"title": "Adversarial examples", "cards": cards} if cards else None


def attacks(evidence: Evidence) -> dict[str, Any] | None:
    names = evidence.costs.classes
    counted: dict[Pair, list[tuple[str, list[int]]]] = {}
    for line in evidence.record["history"]:
        for found in line.get("attacks", ()):
            bar = (str(line["epoch"]), [found[outcome] for outcome in OUTCOMES])
            counted.setdefault((found["truth"], found["predicted"]), []).append(bar)
    if not counted:
        return None
    figures = []
    for i, ((y, z), bars) in enumerate(counted.items()):
        title = f"Attacks on {names[y]} towards {names[z]} by epoch"
        drawn = charts.share_bars(f"attack-{i}", title, OUTCOMES, bars)
        figures.append({"truth": names[y], "target": names[z], "cost": compact(evidence.costs[y, z]), "chart": drawn})
    last = np.sum([bars[-1][1] for bars in counted.values()], axis=0)
    shares = [(outcome, percent(n / max(last.sum(), 1), 0)) for outcome, n in zip(OUTCOMES, last, strict=True)]
    return {"title": "Attacks during training", "figures": figures, "shares": shares}


def training(evidence: Evidence) -> dict[str, Any] | None:
    drawn = []
    for key, label, factor in (
        ("loss", "training loss", 1),
        ("validation_accuracy", "validation accuracy (%)", 100),
        ("validation_cost", "validation cost per 100", 100),
    ):
        history = [line for line in evidence.record["history"] if line.get(key) is not None]
        if history:
            x, y = [line["epoch"] for line in history], [factor * line[key] for line in history]
            curve = Line(label, "after", x, y, [f"epoch {e}: {v:,.4g}" for e, v in zip(x, y, strict=True)])
            title, axes = f"{label} by epoch".capitalize(), (Axis("epoch", whole=True), Axis(label))
            drawn.append(charts.line_chart(f"training-{key}", title, *axes, [curve], width=300))
    return {"title": "Training", "charts": drawn} if drawn else None


def what_was_run(evidence: Evidence) -> dict[str, Any]:
    record = evidence.record
    samples = {f"{part} samples": f"{n:,}" for part, n in record["data"]["samples"].items()}
    groups = {
        "Run": {
            "data": record["data"]["name"],
            **samples,
            "model": record["model"]["architecture"],
            "method": record["method"],
            "started": _moment(record["started"]),
            "took": f"{record['seconds']:,.0f} s",
        },
        "Options": record["options"],
        "Model before": record["start"],
        "Decision rule": {key: value for key, value in record["decision"].items() if key != "costs"}
        | {"budget": f"{record['budget']:g} points of accuracy"},
        "Environment": record["environment"],
    }
    return {"title": "What was run", "groups": {name: _flat(facts) for name, facts in groups.items() if facts}}


SECTIONS: dict[str, Callable[[Evidence], dict[str, Any] | None]] = {
    "results": results,
    "costs": costs,
    "confusion": confusion,
    "mistakes": mistakes,
    "pairs": pairs,
    "frontier": frontier,
    "coverage": coverage,
    "examples": examples,
    "attacks": attacks,
    "training": training,
    "run": what_was_run,
}


class Picture(NamedTuple):
    uri: Markup  # a PNG inside the page
    width: int  # as it is shown
    small: bool  # enlarged: its pixels stay squares


def picture(image: Array) -> Picture:
    """Large ones are made smaller, small ones are shown at a whole multiple of their size."""
    shown = Image.fromarray(image)
    shown.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    shown.save(file, "PNG", optimize=True)
    uri = Markup("data:image/png;base64,") + base64.b64encode(file.getvalue()).decode()
    return Picture(uri, shown.width * max(1, round(120 / shown.width)), shown.width < 100)


def _present(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise InputError(f"{folder} holds no {name}, which `csada fit` writes; run it again, or give its folder")
    return folder / name


def _moment(text: str) -> str:
    """ISO 8601 as people write it."""
    return text.replace("T", " ").replace("Z", " UTC")


def _inner(rule: Rule) -> MinimumExpectedCost:
    return rule.rule if isinstance(rule, Abstention) else rule


def _paid(evidence: Evidence, row: str) -> NDArray[np.float64]:
    """[N]: what every test sample cost in that row."""
    rule = evidence.rules[_side(row)] if "rule" in row else decisions.argmax
    predicted, truth = rule(evidence.arrays[f"{_side(row)}_test"]), evidence.arrays["test_labels"]
    return np.where(predicted == REFER, evidence.rows[row].referral_cost, evidence.costs.values[truth, predicted])


def _side(row: str) -> str:
    """before or after."""
    return row.partition(" ")[0]


def _less(before: Evaluation, after: Evaluation) -> str:
    was, now = before.weighted_error_rate, after.weighted_error_rate
    if was == now:
        return "no change"
    share = abs(1 - now / was) if was else 0.0
    return f"{percent(share, int(0.99 < share < 1))} {'less' if now < was else 'more'}" if was else "up from nothing"


def _largest_mistake(counts: Array) -> int:
    wrong = np.abs(counts[:, : len(counts)]) * ~np.eye(len(counts), dtype=bool)
    return max(int(wrong.max()), 1)


def _counted(evidence: Evidence, counts: Array, names: Sequence[str], largest: int) -> dict[Pair, Cell]:
    """Right ones pale, mistakes as strong as they are frequent."""
    cells = {}
    for y, z in np.argwhere(counts).tolist():
        n, of = int(counts[y, z]), int(counts[y].sum())
        kind = "right" if y == z else "error" if z < len(evidence.costs) else "referred"
        tone = 0.45 * n / of if kind != "error" else 0.15 + 0.8 * float(np.sqrt(n / largest))
        price = f", each costs {compact(evidence.costs[y, z])}" if kind == "error" else ""
        cells[y, z] = Cell(
            kind, tone, str(n), f"{names[y]} called {names[z]}: {n} of {of} ({percent(n / of, 1)}){price}"
        )
    return cells


def _changed(first: Array, second: Array, names: Sequence[str]) -> dict[Pair, Cell]:
    """Fewer and more mistakes; on the diagonal more is better, so it has no colour."""
    difference = second - first
    largest = _largest_mistake(difference)
    cells = {}
    for y, z in np.argwhere(difference).tolist():
        n = int(difference[y, z])
        mistake = y != z and z < len(difference)
        kind = ("more" if n > 0 else "fewer") if mistake else "flat"
        tone = 0.15 + 0.8 * float(np.sqrt(abs(n) / largest)) if mistake else 0.0
        text = f"{n:+d}".replace("-", "−")
        cells[y, z] = Cell(kind, tone, text, f"{names[y]} called {names[z]}: {first[y, z]} → {second[y, z]} ({text})")
    return cells


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as lines of name and text; what is not set is left out."""
    lines: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            lines += _flat(value, f"{name}: ")
        elif isinstance(value, float):
            lines.append((name, f"{value:.5g}"))
        elif value is not None:
            lines.append((name, value if isinstance(value, str) else json.dumps(value)))
    return lines
