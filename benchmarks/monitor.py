"""csada monitor against the truth, in simulated deployments, and what log and estimate cost in time.

    python benchmarks/monitor.py shift     estimates under changed class frequencies and damaged images, on three data sets
    python benchmarks/monitor.py speed     a million logged decisions, with and without late labels
    python benchmarks/monitor.py log       csada predict with and without a log

Each writes its part of results/monitor.json. Class frequencies are drawn from Dirichlet(1), ten times; chunks are drawn from
test images with replacement. Limits and bands are computed from validation, and so is the strength of each damage: the weakest
that costs five points of accuracy there, before any alarm is looked at. Two choices were made after a look at earlier runs, on
seeds 0 to 9: the features of the test of change, and its nominal rate of false alarms, 0.5 % instead of 1 %. The record is
therefore of seeds from FIRST on, that nothing was chosen on: class frequencies and draws, and for digits also ten splits of 35,
30 and 35 %, with costs and a small CNN each. Needs MNIST and CIFAR-10 in $CSADA_DATA; these have one split and one CNN.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

import csada
from csada.classifier import Classifier
from csada.data.digits import load as load_digits
from csada.decisions import choose, decide
from csada.decisions.shift import Chunk, Reference
from csada.evidence import side_of
from csada.manifest import deployed
from csada.models import cnn
from csada.reading import plain
from csada.workflow.predict import IMAGES, ROWS
from csada.workflow.runs import environment

RECORD = Path("results/monitor.json")
MODELS = Path("out/monitor")
SHIFTS, CHUNKS, K = 10, 20, 10
ROUNDS = 7
FIRST = 100  # seed: those below 10 were used while the monitor was made
LOST = 0.05  # accuracy
DAMAGE = {  # weak to strong; the first that costs LOST on validation is taken
    "blur": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5),
    "noise": (10, 20, 30, 40, 50, 60, 70, 80, 90, 100),
    "JPEG": (30, 20, 15, 12, 10, 8, 6, 5, 4, 3, 2, 1, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25),
}


def damaged(x: torch.Tensor, kind: str, level: float, top: int) -> torch.Tensor:
    """uint8 images [N, C, H, W] of values 0 to top. JPEG below 1: quality 1, after a resize to that share of the side."""
    pixels = np.round(x.numpy() * (255 / top))
    if kind == "noise":
        pixels = np.clip(pixels + np.random.default_rng(0).normal(0, level, pixels.shape), 0, 255)
    else:
        made = []
        for image in pixels.astype(np.uint8):
            picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
            if kind == "blur":
                picture = picture.filter(ImageFilter.GaussianBlur(level))
            else:
                size = picture.size
                if level < 1:
                    picture = picture.resize([round(level * side) for side in size])
                picture.save(file := io.BytesIO(), "JPEG", quality=max(int(level), 1))
                picture = Image.open(file).resize(size)
            values = np.asarray(picture)
            made.append(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))
        pixels = np.stack(made)
    return torch.from_numpy(np.round(pixels * (top / 255)).astype(np.uint8))


def drawn(draw, labels, frequencies, n):
    truth = draw.choice(K, n, p=frequencies)
    index = np.empty(n, np.int64)
    for c in range(K):
        index[truth == c] = draw.choice(np.flatnonzero(labels == c), (truth == c).sum())
    return index


def deployment(name, scores, splits, decision, costs, validation, n, top, pool, seed):
    """scores: images -> logits. The measurements of one model, as lists of numbers by chunk."""
    rule = decision.rule(costs)
    inner = decision.automatic(costs)
    logits, labels = validation
    reference = Reference(inner.probabilities(logits), labels, np.asarray(rule(logits)), costs.values)
    y = splits.test.y.numpy()
    clean = scores(splits.test.x)
    p, predicted = inner.probabilities(clean), np.asarray(rule(clean))
    paid = costs.values[y, predicted]
    pairs = costs.critical_pairs(3)
    draw, rows = np.random.default_rng(seed), []
    for _ in range(SHIFTS):
        q = draw.dirichlet(np.ones(K))
        mean, square = (np.array([(paid[y == c] ** power).mean() for c in range(K)]) @ q for power in (1, 2))
        noise = 2 * 1.96 * np.sqrt((square - mean**2) / n)
        for _ in range(CHUNKS):
            i = drawn(draw, y, q, n)
            chunk = Chunk(reference, p[i], predicted[i])
            cost, real = chunk.mean_cost(), paid[i].mean()
            true = np.bincount(y[i], minlength=K) / n
            away = [
                np.abs(f - true).sum() / 2
                for f in (chunk.frequencies, chunk.frequencies_by_counts, reference.frequencies)
            ]
            held = []
            for a, b in pairs:
                only = np.zeros((K, K))
                only[a, b] = 1
                band, count = chunk.estimate(only).band, ((y[i] == a) & (predicted[i] == b)).mean()
                held.append(band.low <= count <= band.high + 1e-12)
            rows.append(
                {
                    "covered": cost.band.low <= real <= cost.band.high,
                    "width": (cost.band.high - cost.band.low) / noise if noise > 0 else np.nan,
                    "estimate": cost.value,
                    "real": real,
                    "away_em": away[0],
                    "away_bbse": away[1],
                    "away_none": away[2],
                    "false_alarm": chunk.change.found,
                    "pairs_covered": np.mean(held),
                }
            )
    some = np.random.default_rng(seed).permutation(len(y))[:pool]
    x, base = splits.test.x[some], (clean[some].argmax(1) == y[some]).mean()
    hurt = []
    known = splits.validation.take(np.random.default_rng(seed).permutation(len(splits.validation))[:pool])
    usual = (scores(known.x).argmax(1) == known.y.numpy()).mean()
    for kind, levels in DAMAGE.items():
        for level in levels:
            fallen = usual - (scores(damaged(known.x, kind, level, top)).argmax(1) == known.y.numpy()).mean()
            if fallen >= LOST:
                break
        found = scores(damaged(x, kind, level, top))
        lost = base - (found.argmax(1) == y[some]).mean()
        row = {"kind": kind, "level": level, "accuracy_lost": lost, "flagged": []}
        if fallen >= LOST:
            p, predicted = inner.probabilities(found), np.asarray(rule(found))
            for _ in range(SHIFTS * CHUNKS // 2):
                i = drawn(draw, y[some], draw.dirichlet(np.ones(K)), n)
                row["flagged"].append(Chunk(reference, p[i], predicted[i]).change.found)
        hurt.append(row)
        print(
            name, kind, level, f"{100 * lost:.1f} points, flagged {np.mean(row['flagged'] or [np.nan]):.3f}", flush=True
        )
    return {"accuracy": float((clean.argmax(1) == y).mean()), "validation": len(labels)}, rows, hurt


def digits(seed):
    splits = load_digits(seed=seed, parts=(35, 30, 35))
    model = csada.fit(
        cnn(1, 8, K, seed=seed),
        splits,
        method="cross_entropy",
        epochs=30,
        lr=0.05,
        batch_size=64,
        momentum=0.9,
        seed=seed,
    ).model
    classifier = Classifier.of(model, splits)
    logits = classifier.logits(splits.validation.x).numpy()
    labels = splits.validation.y.numpy()
    costs = csada.CostMatrix(csada.CostMatrix.pareto(K, seed=seed).values, splits.classes)
    decision = choose(logits, labels, costs)
    scores = lambda x: classifier.logits(x).numpy()  # noqa: E731
    return deployment("digits", scores, splits, decision, costs, (logits, labels), 200, 16, 10_000, seed)


def saved(name, *how):
    """A baseline of some minutes on a CPU, and its decision rule."""
    folder, base = MODELS / name, MODELS / f"{name}-baseline"
    run = [sys.executable, "-m", "csada"]
    if not folder.exists():
        subprocess.run([*run, "train", name, *how, "--out", str(base)], check=True)
        subprocess.run([*run, "fit", base, name, "--costs", "pareto:0", "--epochs", "0", "--out", folder], check=True)
    classifier, splits = Classifier.load(folder), csada.data.load(name)
    evidence = deployed(folder).evidence
    validation = evidence.logits(side_of(evidence.chosen), "validation"), evidence.labels("validation")
    scores = lambda x: classifier.logits(x).numpy()  # noqa: E731
    return deployment(name, scores, splits, classifier.decision, classifier.costs, validation, 1000, 255, 2000, FIRST)


def shift(names):
    todo = {
        "digits": lambda: [digits(seed) for seed in range(FIRST, FIRST + 10)],
        "mnist": lambda: [saved("mnist", "--model", "cnn", "--epochs", "3")],
        "cifar10": lambda: [saved("cifar10", "--model", "cnn", "--epochs", "6")],
    }
    found = {}
    for name in names or todo:
        facts, rows, hurt = zip(*todo[name](), strict=True)
        rows = [row for each in rows for row in each]
        mean = {key: float(np.nanmean([row[key] for row in rows])) for key in rows[0]}
        damage = []
        for kind in DAMAGE:
            of_kind = [row for each in hurt for row in each if row["kind"] == kind]
            flags = [flag for row in of_kind for flag in row["flagged"]]
            enough = [row for row in of_kind if row["flagged"]]
            damage.append(
                {
                    "kind": kind,
                    "levels": sorted({row["level"] for row in enough}),
                    "chunks": len(flags),
                    "accuracy_lost": float(np.mean([row["accuracy_lost"] for row in enough or of_kind])),
                    "flagged": float(np.mean(flags)) if flags else None,
                }
            )
        found[name] = {
            "models": len(facts),
            "accuracy": float(np.mean([fact["accuracy"] for fact in facts])),
            "validation": facts[0]["validation"],
            "chunks": len(rows),
            **mean,
            "damage": damage,
        }
        print(name, json.dumps(found[name], indent=1), flush=True)
    return found


QUIET = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
RUN = [sys.executable, "-m", "csada"]


def made_in(place, data="digits"):
    """A model of digits in the folder `model`."""
    here = Path(place)
    subprocess.run([*RUN, "train", data, "--epochs", "20", "--out", here / "base"], **QUIET)
    fit = ["fit", here / "base", data, "--costs", "pareto:0", "--epochs", "0", "--out", here / "model"]
    subprocess.run([*RUN, *fit], **QUIET)
    return here


def measured(*words, to=os.devnull):
    """Seconds, CPU seconds and peak memory of a command."""
    with open(to, "wb") as out:
        start = time.perf_counter()
        process = subprocess.Popen([*RUN, *words], stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words} ended with {status}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": time.perf_counter() - start, "cpu_seconds": cpu, "peak_mb": usage.ru_maxrss / 1024}


def estimating(samples, together):
    """CPU seconds for the expected costs of so many decisions: of every class, the choice by them, and of the choice."""
    p, costs = np.random.default_rng(0).dirichlet(np.ones(K), together), csada.CostMatrix.pareto(K, seed=0)
    start = time.process_time()
    for _ in range(samples // together):
        assert (decide(p, costs).cost >= 0).all()
    return time.process_time() - start


def log(_):
    """predict with a log and without: CPU seconds of the whole command, less those of a command with one sample.

    Medians of ROUNDS, in which the commands take turns. What expected costs take is in both, and measured by itself.

    Rows of 16 numbers, by a folder and by an ONNX file; and images of 8 x 8 with a small CNN. Large networks and images take
    longer, so that a log weighs less.
    """
    found = {}
    with tempfile.TemporaryDirectory() as place:
        here, seeing = made_in(place), csada.data.load("digits")
        (few := here / "few").mkdir()
        (many := here / "many").mkdir()
        for i, image in enumerate(seeing.test.x.repeat(40, 1, 1, 1)[:10_000]):
            Image.fromarray((image[0].numpy() * 15).astype(np.uint8)).save(many / f"{i}.png")
        (few / "0.png").write_bytes((many / "0.png").read_bytes())
        (other := here / "table").mkdir()
        x, y = (torch.cat([getattr(part, each) for part in seeing.parts.values()]).numpy() for each in "xy")
        x = x.astype(float).reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16)
        header = ",".join(f"x{i}" for i in range(16))
        rows = [",".join(f"{v:g}" for v in row) for row in x]
        (other / "digits.csv").write_text(
            "\n".join([f"{header},label", *(f"{r},{k}" for r, k in zip(rows, y, strict=True))])
        )
        made_in(other, other / "digits.csv")
        subprocess.run([*RUN, "export", other / "model", "--out", other / "model.onnx"], **QUIET)
        for name, n in (("one.csv", 1), ("rows.csv", 200_000)):
            (other / name).write_text("\n".join([header, *(rows[i % len(rows)] for i in range(n))]))
        for name, samples, model, one, inputs in (
            ("rows, folder", 200_000, other / "model", other / "one.csv", other / "rows.csv"),
            ("rows, ONNX", 200_000, other / "model.onnx", other / "one.csv", other / "rows.csv"),
            ("images, folder", 10_000, here / "model", few, many),
        ):
            kinds = {"start": [one], "plain": [inputs], "logged": [inputs, "--log", here / "log.jsonl"]}
            times = {kind: [] for kind in kinds}
            load = os.getloadavg()[0]
            for _ in range(ROUNDS):
                for kind, words in kinds.items():
                    (here / "log.jsonl").unlink(missing_ok=True)
                    told = measured("predict", model, *words, "--out", here / "decided.csv", "--force")
                    times[kind].append(told["cpu_seconds"])
            start, plain_s, log_s = (float(np.median(times[kind])) for kind in kinds)
            found[name] = {"samples": samples, "start": start, "cpu_seconds": plain_s, "cpu_seconds_with_log": log_s}
            found[name]["added"] = (log_s - plain_s) / (plain_s - start)
            found[name]["estimate"] = estimating(samples, ROWS if "rows" in name else IMAGES) / (plain_s - start)
            found[name] |= {"rounds": ROUNDS, "load_before": load}
            print(name, json.dumps(found[name]), flush=True)
    return found


def speed(sizes):
    """A million decisions of a digits model in thirty days, each with an id and an input of its own."""
    found, n = {}, int(sizes[0]) if sizes else 1_000_000
    with tempfile.TemporaryDirectory() as place:
        here = made_in(place)
        classifier, part = Classifier.load(here / "model"), csada.data.load("digits").test
        classifier.log(here / "some.jsonl", part.x)
        lines = [line.partition(b',"probabilities"')[2] for line in (here / "some.jsonl").read_bytes().splitlines()]
        names = [classifier.classes[k] for k in part.y]
        with (here / "log.jsonl").open("wb") as file, (here / "late.csv").open("w") as late:
            late.write("id,label\n")
            for i in range(n):
                some = i % len(lines)
                start = f'{{"time":"2026-03-{1 + 30 * i // n:02}T10:00:00Z","id":"case {i}","input":"{i:064x}"'
                file.write(start.encode() + b',"probabilities"' + lines[some] + b"\n")
                late.write(f"case {i},{names[some]}\n")
        for every in ("1000", "day", str(n)):  # the last: one period of all
            for kind, more in (("", []), (", as many late labels", ["--labels", here / "late.csv"])):
                words = (
                    "monitor",
                    here / "model",
                    here / "log.jsonl",
                    "--every",
                    every,
                    "--no-change",
                    "--json",
                    *more,
                )
                told = measured(*words, to=here / "told.json")
                periods = json.loads((here / "told.json").read_text())["found"]["periods"]
                found[f"{n:,}, every {every}{kind}"] = {"periods": len(periods), **told}
                print(every, kind, json.dumps(told), flush=True)
    return found


def table(record):
    """The record as the guide shows it."""
    lines = [
        "| data | models, accuracy | real cost in the band | width / chance alone | frequencies off by (EM, counts, none) "
        "| false alarms | damage flagged (points of accuracy lost) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in record["shift"].items():
        hurt = [
            f"{each['kind']} {100 * each['flagged']:.1f} % ({100 * each['accuracy_lost']:.1f})"
            if each["flagged"] is not None
            else f"{each['kind']} – (at most {100 * each['accuracy_lost']:.1f})"
            for each in row["damage"]
        ]
        away = ", ".join(f"{row[key]:.3f}" for key in ("away_em", "away_bbse", "away_none"))
        shown = {"mnist": "MNIST", "cifar10": "CIFAR-10 (JPEG)"}.get(name, name)
        lines.append(
            f"| {shown} | {row['models']}, {100 * row['accuracy']:.1f} % | {100 * row['covered']:.1f} % | {row['width']:.2f} "
            f"| {away} | {100 * row['false_alarm']:.1f} % | {', '.join(hurt)} |"
        )
    return "\n".join(lines)


def speed_table(record):
    """A million decisions, as the page on benchmarks shows them."""
    lines = ["| `--every` | periods | without labels | with as many late labels |", "| --- | ---: | ---: | ---: |"]
    labelled = ", as many late labels"
    for name, row in record["speed"].items():
        if not name.endswith(labelled):
            both = [
                f"{each['seconds']:.0f} s, {each['peak_mb']:.0f} MB" for each in (row, record["speed"][name + labelled])
            ]
            lines.append(f"| {name.rpartition(' ')[2]} | {row['periods']:,} | {' | '.join(both)} |")
    return "\n".join(lines)


def log_table(record):
    """What a log adds, as the same page shows it."""
    lines = [
        "| `csada predict` on | CPU, without a log | with one | per decision | expected costs, in both |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in record["log"].items():
        plain_s, log_s = (row[each] - row["start"] for each in ("cpu_seconds", "cpu_seconds_with_log"))
        per = 1e6 * (log_s - plain_s) / row["samples"]
        lines.append(
            f"| {row['samples']:,} {name} | {plain_s:.2f} s | {log_s:.2f} s, {100 * row['added']:+.0f} % | {per:+.1f} µs "
            f"| {100 * row['estimate']:.1f} % |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *names = sys.argv[1:] or ["shift"]
    made = {"shift": shift, "speed": speed, "log": log}[what](names)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known[what] = made if what != "shift" else known.get(what, {}) | made
    known.setdefault("environment", {})[what] = plain(environment())
    RECORD.write_text(json.dumps(known, indent=1) + "\n")
