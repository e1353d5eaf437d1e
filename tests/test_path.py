"""The new user's path: every command of README.md and docs/own-data.md, in the order of the page, on real data.

The commands run as they are printed. They are quick since csada.toml asks for few epochs, as the page advises for a first try.
"""

import csv
import re
import shlex
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from test_cli import inside

from csada import Classifier
from csada.report.card import verdict

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": ROOT / "README.md", "own-data.md": ROOT / "docs" / "own-data.md"}
OTHERWISE = {"photos": "patients.csv", "new": "new.csv", "trazodone,glipizide,": "malignant,benign,"}  # with a table
NAMES = (
    "amlodipine",
    "glipizide",
    "ranitidine",
    "trazodone",
)  # the page's; handwritten digits stand in for the photographs
BLOCK = re.compile(r"^```(sh|csv)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def write_photos(folder):
    """300 JPEG files of 32 pixels."""
    digits = load_digits()
    for k, name in enumerate(NAMES):
        (folder / "photos" / name).mkdir(parents=True)
        for i, pixels in enumerate(digits.images[digits.target == k + 3][:75]):
            image = Image.fromarray((pixels * 15).astype(np.uint8)).resize((32, 32))
            image.save(folder / "photos" / name / f"{i:04}.jpg")
    (folder / "new").symlink_to(folder / "photos" / NAMES[0])


def write_tables(folder):
    """Three columns of the breast-cancer data with an id, words and missing values; and some rows of it without the class."""
    cancer = load_breast_cancer()
    header = ["id", "radius", "texture", "perimeter", "side", "diagnosis"]
    rows = [
        [1001 + i, *(f"{value:.2f}" for value in x[:3]), ("left", "right")[i % 2], cancer.target_names[y]]
        for i, (x, y) in enumerate(zip(cancer.data, cancer.target, strict=True))
    ]
    for row in rows[1::10]:
        row[2] = ""
    for row in rows[5::20]:
        row[4] = "?"
    new = [row[:5] for row in rows[:20]]
    new[0][4] = "both"
    for name, written in (("patients.csv", [header, *rows]), ("new.csv", [header[:5], *new])):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(written)


def steps(page):
    """(cd, folder), (csada, word, ...) and (costs, text) in the order of the page."""
    for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "csv" and re.match(
            r"truth,|[\w*]+,[\w()]+,[\d.]+,", body
        ):  # costs; another one shows what data look like
            yield "costs", body
        elif kind == "sh":
            yield from (tuple(words) for line in body.splitlines() if (words := shlex.split(line, comments=True)))


def few_epochs(project):
    """As the page advises for a first try."""
    text = re.sub(r"^epochs = \d+", "epochs = 1", project.read_text(), flags=re.MULTILINE)
    text = text.replace("[fit]  #", "[fit]\nepochs = 1\n#").replace(
        "[tune]", "[compare]\nepochs = 1\nbaseline_epochs = 1\n\n[tune]\nepochs = 1"
    )
    project.write_text(text)


def readable(page):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


SAID = {  # by each command, on the screen
    "data": ("validation", "test", "all"),
    "init": ("csada.toml", "Next: say in"),
    "costs": ("is paid when", "The costliest mistakes:"),
    "train": ("test accuracy",),
    "fit": ("before + rule", "cost per 100 predictions", "Validation chose the row with *"),
    "tune": ("5 trials: 5 finished",),
    "evaluate": ("cost per 100 predictions", "the costliest mistakes:"),
    "compare": ("baseline + rule", "over 3 seeds"),
    "export": ("onnxruntime and PyTorch agree",),
}
WRITTEN = [  # by the page, and whether its data are a table: how many decisions, in which file
    ("README.md", False, {"decisions.csv": 75}),
    ("README.md", True, {"decisions.csv": 20}),
    ("own-data.md", False, {"decisions.csv": 75, "hospital/decisions.csv": 20}),
]
SHOWN = re.compile(  # what a command prints
    r"^```text\n((?:\S+: (?:categorical|missing|column).*\n)+)```", re.MULTILINE
)


@pytest.mark.parametrize(("page", "table", "written"), WRITTEN, ids=["README", "README-table", "own-data"])
def test_every_command_of_the_page_does_what_the_page_says(page, table, written, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'csada[onnx]'")
    write_photos(tmp_path)
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    told, ran, printed = "", set(), ""
    for program, *words in steps(PAGES[page]):
        if table:
            words = [re.sub(r"^(photos$|new$|trazodone,glipizide,)", lambda m: OTHERWISE[m[0]], w) for w in words]
        if program == "cd":
            monkeypatch.chdir(words[0])
        elif program == "costs":
            old = "" if words[0].startswith("truth") else Path("costs.csv").read_text()
            Path("costs.csv").write_text(old + words[0])
        elif program == "csada":
            run = inside(*words)
            assert run.returncode == 0, (words, run.stderr)
            ran.add(words[0])
            printed += run.stderr
            wrote = [Path(name) for name in re.findall(r"^wrote (.+)$", run.stdout, re.MULTILINE)]
            assert all(path.exists() for path in wrote)
            if words[:2] != ["costs", "new"]:
                assert not [part for part in SAID.get(words[0], ()) if part not in run.stdout], (words, run.stdout)
            if words[0] == "init":
                few_epochs(wrote[-1])
            elif words[0] == "fit":
                told = verdict(Classifier.load(wrote[0]).evidence)
                assert told in run.stdout and told in (wrote[0] / "README.md").read_text()
            elif words[0] == "report":
                if taken := re.search(r"^takes (.+?): it costs", run.stderr, re.MULTILINE):
                    told = verdict(Classifier.load(taken[1]).evidence)
                assert told in readable(wrote[0].read_text())
        else:
            assert program == "make"  # which makes an environment of its own
    shown = "".join(SHOWN.findall(PAGES[page].read_text(encoding="utf-8"))).splitlines()
    assert len(shown) == (3 if page == "own-data.md" else 0) and all(line in printed for line in shown), printed
    assert ran >= {"init", "costs", "train", "fit", "report", "export", "predict"}
    for name, count in written.items():
        with (tmp_path / name).open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == count and {row["class"] for row in rows} <= {*NAMES, "benign", "malignant"}
        assert all(float(row["expected_cost"]) >= 0 and row["error"] == "" for row in rows)
