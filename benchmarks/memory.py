"""Long runs and large data: does memory grow, and what does each command take? Real processes, one after the other.

python benchmarks/memory.py                    # what results/memory.json lacks; all of it takes an hour
python benchmarks/memory.py --again predict    # measure those anew whose names contain a word
Adds to results/memory.json, each measurement with its date and a hash of the code. What others left in the folder of the
work is needed by some: where it is gone, those are measured anew.

growth: anonymous memory over the epochs of a training or the trials of a search, as a line through what was seen after the
first quarter, in percent of the mean per hundred. peak: what the operating system says of the process when it has ended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from csada import __version__
from csada.reading import parse_json, plain, read_text, write_json

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from forked import state_of_code  # noqa: E402

COMPLETE = "complete 2"  # in the folder of the data, once all of them are there
ROWS, CLASSES = 1_000_000, 10  # of predictions and scores
IMAGES, MANY = 20_000, 1000  # pictures of ten classes; classes of five pictures
EPOCHS, TRIALS = 200, 500
WARM = 0.25  # of a run, before growth counts
WRITTEN = ("--out", "--log", "--track", "--save", "--recalibrate", "--scores", "--figure")  # options that name outputs
FLAGS = ("--matrix", "--method", "--priors", "--rule", "--groups")  # that are in the name of a measurement
NOT_MEASURED = {
    "data fetch": "needs a network; it writes 256 kB at a time and holds no more",
    "reproduce": "takes hours, of trainings on data sets that are known: those of train and fit",
    "study": "takes hours, of trainings on data sets that are known: those of train and fit",
}


@dataclass(frozen=True)
class Measurement:
    name: str
    words: str
    counted: str = ""  # a glob of the file that gets a line per step, where growth is measured
    steps: int = 0
    codes: tuple[int, ...] = (0,)

    @property
    def outputs(self) -> set[str]:
        words = self.words.split()
        saved = {words[3]} if words[:2] == ["data", "save"] else set()
        return saved | {value.removeprefix("csv:") for option, value in pairwise(words) if option in WRITTEN}


def growth() -> Iterator[Measurement]:
    yield Measurement("baseline of digits", "train digits --model mlp --epochs 5 --out digits")
    yield Measurement(
        f"train, {EPOCHS} epochs",
        f"train digits --model mlp --epochs {EPOCHS} --out long/trained --track csv:long/train",
        "long/train/*/metrics.csv",
        EPOCHS,
    )
    yield Measurement(
        f"fit by csada, {EPOCHS} epochs",
        f"fit digits digits --costs pareto:0 --method csada --epochs {EPOCHS} --out long/fitted --track csv:long/fit",
        "long/fit/*/metrics.csv",
        EPOCHS,
    )
    yield Measurement(
        f"tune, {TRIALS} trials",
        f"tune digits digits --scale 0.2 --costs pareto:0 --epochs 1 --trials {TRIALS} --out long/search --seen keep",
        "long/search/trials.jsonl",
        TRIALS,
    )


def predictions() -> Iterator[Measurement]:
    yield Measurement("baseline of the table", "train table.csv --model mlp --epochs 3 --out mlp")
    yield Measurement("rule of the table", "fit mlp table.csv --costs pareto:0 --epochs 0 --out rows")
    yield Measurement("predict", "predict rows million.csv --out decisions.csv")
    yield Measurement("predict --log", "predict rows million.csv --out decisions.csv --log decisions.jsonl")
    yield Measurement("monitor", "monitor rows decisions.jsonl --out monitor.html", codes=(0, 1))
    yield Measurement(
        "monitor --every day", "monitor rows decisions.jsonl --every day --out monitor.html", codes=(0, 1)
    )
    yield Measurement("decide", "decide scores.csv --costs pareto:0 --out decided.csv --save rule")
    yield Measurement("decide --rule --log", "decide scores.csv --rule rule --out decided.csv --log decided.jsonl")
    labels = "monitor rule decided.jsonl --labels late.csv --recalibrate again --out monitor.html"
    yield Measurement("monitor --labels --recalibrate", labels, codes=(0, 1))


def paper() -> Iterator[Measurement]:
    """What takes no data of a user."""
    for words in (
        "toy --seeds 2 --out toy",
        "demo --seeds 2 --out demo",
        "tabular --seeds 2 --out tabular.json",
        "tables --results records --out tables",
        "figures --results records --out figures",
    ):
        yield Measurement(words.split()[0], words)


def every_command(data: str) -> Iterator[Measurement]:
    """On the pictures in a folder of that name. out/ is the folder of results."""
    out = f"out-{data}"
    costs = f"{out}/costs.csv"
    for words in (
        f"init {data} --out {out}/project",
        f"costs new {data} --out {costs} --force",
        f"costs new {data} --out {out}/matrix.csv --matrix --force",
        f"costs check {costs} --data {data}",
        f"costs merge {costs} {out}/matrix.csv --out {out}/merged.csv --force",
        f"data show {data} --figure {out}/classes.png",
        f"data save {data} {out}/saved",
        f"train {data} --model cnn --size 16 --epochs 1 --out {out}/baseline",
        f"fit {out}/baseline {data} --costs {costs} --method csada --epochs 1 --out {out}/csada",
        f"fit {out}/baseline {data} --costs {costs} --members 2 --epochs 1 --out {out}/fitted",
        f"fit {out}/fitted {data} --costs {costs} --priors priors-{data}.csv --out {out}/elsewhere",
        f"compare {data} --size 16 --costs {costs} --model cnn --methods cost_weighted --seeds 1 --epochs 1 "
        f"--baseline-epochs 1 --out {out}/compared",
        f"tune {out}/baseline {data} --costs {costs} --epochs 1 --trials 2 --out {out}/search",
        f"evaluate {out}/fitted {data} --scores {out}/scores.csv",
        f"check {out}/fitted {data} --criteria limits.toml",
        f"check {out}/fitted {data} --criteria limits.toml --groups groups-{data}.csv",
        f"review {out}/fitted {data} --out {out}/review.html",
        f"report {out}/fitted --out {out}/report.html",
        f"export {out}/fitted --out {out}/model.onnx",
        f"predict {out}/fitted {data} --out {out}/decisions.csv --log {out}/log.jsonl",
        f"predict {out}/model.onnx {data} --out {out}/decisions.csv",
        f"monitor {out}/fitted {out}/log.jsonl --out {out}/monitor.html",
        f"decide {out}/scores.csv --costs {costs} --out {out}/decided.csv --save {out}/rule",
        f"decide {out}/scores.csv --rule {out}/rule --out {out}/decided.csv",
        f"diff {out}/csada {out}/fitted {data} --out {out}/diff.html",
    ):
        first = " ".join(words.split()[: 2 if words.startswith(("costs", "data")) else 1])
        flag = next((each for each in FLAGS if each in words and first != "compare"), "")
        more = {"": "", "--method": " --method csada"}.get(flag, f" {flag}")
        name = f"{first}{more}{' (ONNX)' * (words.startswith('predict') and '.onnx' in words)}"
        yield Measurement(f"{name}, {data}", words, codes=(0, 1, 3) if first in ("check", "monitor") else (0,))


def measurements() -> list[Measurement]:
    return [*growth(), *predictions(), *paper(), *every_command("images"), *every_command("classes")]


# -- data --------------------------------------------------------------------------------------------


def write_data(work: Path) -> None:
    draw = np.random.default_rng(0)
    for rows, name in ((2000, "table.csv"), (ROWS, "million.csv")):
        labels = draw.integers(CLASSES, size=rows)
        values = draw.normal(size=(rows, 10)) + 2 * np.eye(CLASSES, 10)[labels]
        with (work / name).open("w") as file:
            labelled = name == "table.csv"
            file.write(",".join(f"x{i}" for i in range(10)) + ",class\n" * labelled + "\n" * (not labelled))
            for row, label in zip(values.tolist(), labels.tolist(), strict=True):
                file.write(",".join(f"{x:.4f}" for x in row) + (f",c{label}\n" if labelled else "\n"))
    labels = draw.integers(CLASSES, size=ROWS)
    scores = draw.gamma(0.5, size=(ROWS, CLASSES)) + 3 * np.eye(CLASSES)[labels] * draw.random((ROWS, 1))
    scores /= scores.sum(1, keepdims=True)
    with (work / "scores.csv").open("w") as file:
        file.write("id,label," + ",".join(f"p:c{i}" for i in range(CLASSES)) + "\n")
        for i, (row, label) in enumerate(zip(scores.tolist(), labels.tolist(), strict=True)):
            file.write(f"s{i},{f'c{label}' if i % 10 == 0 else ''}," + ",".join(f"{p:.6f}" for p in row) + "\n")
    for name, classes, each in (("images", CLASSES, IMAGES // CLASSES), ("classes", MANY, 5)):
        for k in range(classes):
            colour = draw.integers(40, 215, 3)
            pixels = np.clip(colour + draw.normal(0, 30, (each, 16, 16, 3)), 0, 255).astype(np.uint8)
            for i in range(each):
                part = (
                    "" if name == "images" else ("train", "train", "train", "valid", "test")[i]
                )  # none without a class
                (folder := work / name / part / f"c{k:04}").mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[i]).save(folder / f"{i}.png", compress_level=1)
        names = [f"c{k:04}" for k in range(classes)]
        (work / f"priors-{name}.csv").write_text("class,count\n" + "".join(f"{each},1\n" for each in names))
        judged = [path.relative_to(work / name).as_posix() for path in sorted((work / name).rglob("*.png"))]
        grouped = [f"{path},site {i % 10}\n" for i, path in enumerate(judged)]
        (work / f"groups-{name}.csv").write_text("file,group\n" + "".join(grouped))
    with (work / "late.csv").open("w") as file:  # less sure than the scores are: a re-calibration is offered
        file.write("id,label\n")
        for i in range(0, ROWS, 10):
            file.write(f"s{i},c{labels[i] if i % 30 else (labels[i] + 1) % CLASSES}\n")
    shutil.copytree(ROOT / "results", work / "records", dirs_exist_ok=True)
    (work / "limits.toml").write_text('recall = [{ class = "c0000", at_least = 0.01 }]\n')
    (work / COMPLETE).touch()


# -- processes ---------------------------------------------------------------------------------------


def measured(each: Measurement, work: Path) -> dict[str, Any]:
    """One command from its start to its end."""
    began, seen = time.perf_counter(), []
    with (work / "stdout").open("wb") as out, (work / "stderr").open("wb") as err:
        words = [sys.executable, "-m", "csada", *each.words.split()]
        process = subprocess.Popen(words, cwd=work, stdout=out, stderr=err)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if each.counted and (steps := counted(work, each.counted)):
                seen.append((steps, anonymous(process.pid)))
            time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(ended[1])  # already waited for
    seconds = time.perf_counter() - began
    if process.returncode not in each.codes:
        raise SystemExit(f"csada {each.words}: {process.returncode}\n{(work / 'stderr').read_text()[-2000:]}")
    found = {"command": f"csada {each.words}", "exit_code": process.returncode, "seconds": round(seconds, 1)}
    found |= {"cpu_seconds": round(ended[2].ru_utime + ended[2].ru_stime, 1)}  # the machine may have other work
    found |= {"peak_mb": round(ended[2].ru_maxrss / 1024)}
    return found | (grown(seen, each.steps) if each.counted else {})


def counted(work: Path, pattern: str) -> int:
    """Lines of the file so far."""
    return sum(file.read_bytes().count(b"\n") for file in work.glob(pattern))


def anonymous(process: int) -> int:
    """Bytes that belong to no file; 0 where it has just ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def grown(seen: list[tuple[int, int]], steps: int) -> dict[str, Any]:
    late = np.array([(step, size) for step, size in seen if WARM * steps <= step < steps and size], float)
    (slope, _), mean = np.polyfit(late[:, 0], late[:, 1], 1), late[:, 1].mean()
    megabytes = [
        round(float(np.mean([size for step, size in late if step == at])) / 1e6, 1) for at in np.unique(late[:, 0])
    ]
    shown = {"steps": steps, "looked": len(late), "anonymous_mb": megabytes[:: max(1, len(megabytes) // 10)]}
    return {"growth_percent_per_100": round(float(100 * 100 * slope / mean), 3)} | shown


def cleared(work: Path, each: Measurement) -> None:
    """What an earlier measurement of it wrote: it would resume, or append."""
    for name in each.outputs:
        shutil.rmtree(path) if (path := work / name).is_dir() else path.unlink(missing_ok=True)


def with_needed(wanted: list[Measurement], work: Path) -> list[Measurement]:
    """In order, and before each those that write what it reads and what is not there."""
    every, found = measurements(), dict[str, Measurement]()

    def add(each: Measurement) -> None:
        read = set(each.words.split()) - each.outputs
        for earlier in every[: every.index(each)]:
            if any(not (work / name).exists() for name in read & earlier.outputs) and earlier.name not in found:
                add(earlier)
        found[each.name] = each

    for each in wanted:
        add(each)
    return list(found.values())


def described() -> Any:
    from csada.workflow.runs import environment  # it brings PyTorch, which no child may start with

    return plain(environment())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "csada-memory")
    parser.add_argument("--again", nargs="*", default=[], help="words: what has one in its name is measured anew")
    parser.add_argument("--out", type=Path, default=Path("results/memory.json"))
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    os.environ |= {"CSADA_CACHE": str(given.work / "cache"), "XDG_CACHE_HOME": str(given.work / "home")}
    os.environ |= {"PYTHONPATH": str(ROOT / "src")}
    if not (given.work / COMPLETE).exists():
        written = get_context("spawn").Process(
            target=write_data, args=(given.work,)
        )  # a child starts as its parent's copy
        written.start()
        written.join()
    earlier: dict[str, Any] = parse_json(read_text(given.out), str(given.out)) if given.out.exists() else {}
    known, code = earlier.get("measured", {}), state_of_code(Path(__file__))
    wanted = [
        each for each in measurements() if each.name not in known or any(word in each.name for word in given.again)
    ]
    with get_context("spawn").Pool(1) as pool:
        environment = pool.apply(described)
    for each in with_needed(wanted, given.work):
        cleared(given.work, each)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        known[each.name] = measured(each, given.work) | {"date": date, "code": code}
        print(f"{each.name}: {known[each.name]}", flush=True)
        about = {"date": date, "csada": __version__, "environment": environment, "optuna": version("optuna")}
        names = [one.name for one in measurements()]
        ordered = {name: known[name] for name in names if name in known}
        write_json(given.out, about | {"measured": ordered, "not_measured": NOT_MEASURED})


if __name__ == "__main__":
    main()
