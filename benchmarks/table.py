"""results/benchmarks-*.json -> the tables of docs/benchmarks.md, between its markers, and docs/benchmarks-*.svg and .png.

python benchmarks/table.py [FILE.json ...] [--docs FOLDER]
"""

import argparse
import json
import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from csada.report.style import BLUE, GREY, STYLE, save

ROOT = Path(__file__).resolve().parents[1]
AXES = {
    "steps": "attack steps K",
    "tasks": "attacked samples M per batch",
    "batch_size": "batch size (M in proportion)",
    "classes": "number of classes",
    "width": "width of the CNN",
}
PAGE = """# Benchmarks

Made by `make bench` and `python benchmarks/table.py` from the files `results/benchmarks-*.json`. What is compared takes
turns in one process after a warm-up. Numbers are medians, and ratios are medians of the ratios within a round. Every
attack takes all its K steps unless a row says otherwise; this is the slowest case for csada.
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def page(record: dict, picture: str) -> str:
    """The section of one device."""
    hardware, versions = record["hardware"], record["versions"]
    machine = hardware["gpu"] or f"{hardware['cpu']}, {hardware['threads']} thread(s)"
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    clock = "time of the process" if record["clock"] == "process" else "wall clock"
    parts = [f"## {machine}", f"{record['rounds']} rounds, {clock}; {known}."]
    if record["quick"]:
        parts.append("**A quick run: it shows that the benchmark runs, its numbers mean little.**")
    if record["bars"]:
        rows = [
            [
                bar["what"],
                f"{bar['measured']:.3g}",
                f"{'at most' if bar['at_most'] else 'at least'} {bar['bar']:g}",
                "yes" if bar["met"] else "**no**",
            ]
            for bar in record["bars"]
        ]
        parts += ["### What we set out to reach", table(["", "measured", "bar", "met"], rows)]
    if "epoch" in record:
        found = record["epoch"]
        rows = [[name, seconds_text(found["seconds"][name]), f"{r:.2f}"] for name, r in found["ratios"].items()]
        parts += ["### An epoch", described(found), table(["", "epoch", "over cross-entropy"], rows)]
    if "transcription" in record:
        found = record["transcription"]
        rows = [
            [
                k,
                seconds_text(found["seconds"][f"csada {k}"]),
                seconds_text(found["seconds"][f"transcription {k}"]),
                f"{v:.2f}",
            ]
            for k, v in found["speedup"].items()
        ]
        head = ["", "csada", "transcription", "times as fast"]
        parts += ["### Against the plain transcription of the algorithms", described(found), table(head, rows)]
    if "attacks" in record:
        parts += attack_tables(record["attacks"])
    if "scaling" in record:
        found = record["scaling"]
        rows = [
            [
                f"{AXES[axis]}: {p['value']}",
                seconds_text(p["cross_entropy"]),
                seconds_text(p["csada"]),
                f"{p['ratio']:.2f}",
            ]
            for axis, points in found["axes"].items()
            for p in points
        ]
        head = ["", "cross-entropy epoch", "CSADA epoch", "ratio"]
        parts += ["### Scaling", f"{described(found)} K = {found['K']} unless varied.", table(head, rows)]
    if "memory" in record:
        found = record["memory"]
        before = all("before" in peak for peak in found["peak_mib"].values())
        rows = [
            [name, f"{peak['peak']:,.0f} MiB", *([f"{peak['peak'] - peak['before']:,.0f} MiB"] if before else [])]
            for name, peak in found["peak_mib"].items()
        ]
        head = ["", "peak", *(["above what it was before the epoch"] if before else [])]
        parts += ["### Peak memory", described(found) + f" K = {found['K']}.", table(head, rows)]
    parts.append(f"![the same as bars and curves]({picture})")
    return "\n\n".join(parts)


def attack_tables(found: dict) -> list[str]:
    parts = [
        "### Targeted attacks per second",
        f"{found['model']}; projected sign steps in the L-infinity ball. A library that only returns samples needs one more "
        'forward pass to say which reached their target: "judged" includes it. Passes are in units of the whole batch. '
        "csada stops a sample that reached its target, or would step into a third class; the others do not stop.",
    ]
    for case in found["cases"]:
        title = f"**{case['case']}**, batch {case['batch_size']}, K = {case['steps']}, precision {case['precision']}"
        speeds = case["attacks_per_second"]
        rows = [
            [
                name,
                f"{speed:,.0f}",
                f"{speeds[f'{name}, judged']:,.0f}" if f"{name}, judged" in speeds else f"{speed:,.0f}",
                f"{case['forward_passes'][name]['of_whole_batch']:.1f}",
                f"{case['reached'][name]:.0%}",
            ]
            for name, speed in speeds.items()
            if not name.endswith(", judged")
        ]
        parts += [title, table(["", "attacks/s", "judged", "forward passes", "reached"], rows)]
        parts += [f"Left out: {name}, {why}." for name, why in case["absent"].items()]
    return parts


def described(found: dict) -> str:
    s = found["setting"]
    shape = "x".join(map(str, s["shape"]))
    return (
        f"{s['model']}; {s['images']:,} images of {shape}, batch {s['batch_size']}, M = {s['tasks']}, "
        f"precision {s['precision']}."
    )


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def figure(record: dict):
    """Bars of the epoch and the attacks above, the scaling curves below."""
    with plt.rc_context(STYLE):
        cases = record.get("attacks", {}).get("cases", [])[:3]
        curves = record.get("scaling", {}).get("axes", {})
        rows, columns = 1 + bool(curves), max(2 + len(cases), len(curves))
        drawn, axes = plt.subplots(
            rows, columns, figsize=(3 * columns + 1, 3 * rows), layout="constrained", squeeze=False
        )
        if "epoch" in record:
            bars(axes[0, 0], record["epoch"]["ratios"], "epoch over\ncross-entropy epoch")
        if "transcription" in record:
            bars(axes[0, 1], record["transcription"]["speedup"], "times as fast as\nthe transcription")
        for axis, case in zip(axes[0, 2:], cases, strict=False):
            speeds = {n: v for n, v in case["attacks_per_second"].items() if not n.endswith(", judged")}
            bars(axis, speeds, f"attacks/s, {case['case']},\nbatch {case['batch_size']}, precision {case['precision']}")
        for axis, (name, points) in zip(axes[-1], curves.items(), strict=False):
            axis.plot([p["value"] for p in points], [p["ratio"] for p in points], "o-", color=BLUE)
            axis.axhline(1, color=GREY, linewidth=0.8)
            axis.set(xlabel=AXES[name], xscale="log", ylim=(0, None))
            axis.set_xticks([p["value"] for p in points], [str(p["value"]) for p in points])
            axis.minorticks_off()
        if curves:
            highest = max(axis.get_ylim()[1] for axis in axes[1] if axis.has_data())
            for axis in axes[1]:
                axis.set_ylim(0, highest)  # one scale, so that the curves compare
            axes[1, 0].set_ylabel("CSADA epoch / cross-entropy epoch")
        for axis in axes.flat:
            axis.set_visible(axis.has_data())
    return drawn


def bars(axis, values: dict[str, float], title: str) -> None:
    colours = [BLUE if name.startswith(("csada", "K=")) else GREY for name in values]
    drawn = axis.barh(list(values), list(values.values()), color=colours)
    axis.bar_label(drawn, fmt=lambda v: f"{v:,.0f}" if v >= 100 else f"{v:.2f}", padding=2)
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_title(title)


def insert(text: str, name: str, section: str) -> str:
    """The page with its section between the markers of `name`, which are added at the end where they are missing."""
    begin, end = f"<!-- benchmarks:{name} -->", f"<!-- /benchmarks:{name} -->"
    if begin not in text:
        text = f"{text.rstrip()}\n\n{begin}\n{end}\n"
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{section}\n{end}{rest.split(end, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: results/benchmarks-*.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    given = parser.parse_args()
    target = given.docs / "benchmarks.md"
    text = target.read_text() if target.exists() else PAGE
    for path in given.files or sorted((ROOT / "results").glob("benchmarks-*.json")):
        record = json.loads(path.read_text())
        picture = given.docs / f"benchmarks-{record['device']}"
        drawn = figure(record)
        save(drawn, picture)
        plt.close(drawn)
        text = insert(text, record["device"], page(record, f"{picture.name}.svg"))
    given.docs.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    partial.write_text(text)
    os.replace(partial, target)
    print(target)


if __name__ == "__main__":
    main()
