"""Good files of every kind that csada reads, small enough that a command on them takes a fraction of a second."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from changes import summed
from PIL import Image

import csada
from csada.data import cifar10, pmi

LARGE = ("mnist", "cifar", "jpegs", "pills")  # folders; a case of another file does without them
TOML = """\
data = "table.csv"
costs = "costs.csv"
seed = 0

[train]
out = "out"
model = "mlp"
epochs = 1

[fit]
model = "model"
out = "out"
method = "cost_weighted"
epochs = 1
budget = 0.5
set = { lr = 0.001 }

[report]
folder = "model"
out = "out/report.html"

[predict]
model = "model"

[evaluate]
model = "model"

[check]
model = "model"
criteria = "csada.toml"

[limits]
confidence = 0.9
recall = [{ class = "mid", at_least = 0.1 }]
"""
LIMITS = """\
confidence = 0.9
pair = [{ truth = "low", predicted = "high", at_most = 0.9 }]
recall = [{ class = "mid", at_least = 0.01, confidence = 0.8 }]
referred = { at_most = 0.9 }
"""
MINE = """\
title = "mine"
data = "toy"
data_options = { spread = 2.0 }
model = "mlp"
costs = "pairs"
pairs = [[1, 2]]
methods = ["csada"]
lambdas = [1.0, 2.0]
fresh = true
replications = 1

[smoke]
data = "toy"
data_scale = 1.0
model = "mlp"
baseline = { epochs = 2, lr = 0.05, batch_size = 150 }
options.every = { epochs = 2, lr = 0.01, batch_size = 150 }
options.csada = { steps = 2, step_size = 0.05, epsilon = 1.5 }
replications = 1
"""
COSTS = "truth,predicted,cost,why\n*,*,1,usual\nlow,low,0,\nmid,mid,0,\nhigh,high,0,\nlow,high,10,bad\n"
REFERRED = COSTS + "*,(refer),0.5,a person\n"
PRIORS = "class,frequency\nlow,0.7\nmid,0.2\nhigh,0.1\n"
MATRIX = "truth \\ predicted,low,mid,high\nlow,0,1,10\nmid,1,0,1\nhigh,2,1,0\n"


def write(root: Path, run: Callable[[list[str], Path], tuple[int, float]]) -> None:
    """One folder of everything; each case works on a copy. run: starts csada with some words in a folder."""
    from pyarrow import csv, parquet

    root.mkdir(parents=True)
    draw = np.random.default_rng(0)
    texts = {"csada.toml": TOML, "limits.toml": LIMITS, "costs.csv": COSTS, "referred.csv": REFERRED}
    texts |= {"matrix.csv": MATRIX, "priors.csv": PRIORS, "mine.toml": MINE}
    texts["groups.csv"] = "row,group\n" + "".join(f"{i},{('north', 'south')[i % 2]}\n" for i in range(1, 91))
    for name, text in texts.items():
        (root / name).write_text(text)
    lines = ["age,dose,side,risk"]
    for i in range(90):
        k = i % 3
        word = ("left", "right", "", "both")[i % 4]
        lines.append(f"{draw.normal(5 * k):.3f},{draw.normal():.2f},{word},{('low', 'mid', 'high')[k]}")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    parquet.write_table(csv.read_csv(root / "table.csv"), root / "table.parquet")
    (root / "new.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines[:8]) + "\n")
    for k, label in enumerate(("cat", "dog")):
        (root / "photos" / label).mkdir(parents=True)
        for i in range(12):
            pixels = draw.integers(100 * k, 100 * k + 150, (12, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "photos" / label / f"{i}.png")
    picture = Image.fromarray(draw.integers(0, 255, (20, 16, 3), dtype=np.uint8))
    for suffix in ("png", "jpg", "bmp", "gif", "tif", "webp", "ppm"):
        picture.save(root / f"image.{suffix}")
    _scores(root, draw)
    _answers(root)
    _mnist(root / "mnist", draw)
    _cifar(root / "cifar", draw)
    _jpegs(root / "jpegs", picture)
    for part in ("train", "valid", "test"):
        for ndc in pmi.CLASSES:
            (root / "pills" / part / ndc).mkdir(parents=True)
            picture.save(root / "pills" / part / ndc / "0.jpg")
    (root / "late.csv").write_text("id,label\n" + "".join(f"s{i},{('low', 'mid', 'high')[i % 3]}\n" for i in range(90)))
    with tarfile.open(root / "shard.tar", "w") as tar:
        tar.add(root / "photos", "")
    with tarfile.open(root / "keyed.tar", "w") as tar:
        for place in sorted((root / "photos").glob("*/*.png")):
            label = place.parent.name
            tar.add(place, f"{label}{place.name}")
            info = tarfile.TarInfo(f"{label}{place.stem}.cls")
            info.size = len(label)
            tar.addfile(info, io.BytesIO(label.encode()))
    _models(root)
    _measured(root)
    shutil.copytree(root / "model", root / "checked")
    for command in (
        "reproduce mine.toml --scale smoke --runs runs --results done",
        "check checked table.csv --criteria csada.toml --groups groups.csv",
        "fit model table.csv --costs costs.csv --priors priors.csv --out version",
        "decide scores.csv --costs costs.csv --out out/d.csv --save rule",
        "decide scores.csv --rule rule --out out/d.csv --log log.jsonl",
        "tune baseline table.csv --costs costs.csv --epochs 1 --trials 1 --out search",
        "compare table.csv --costs costs.csv --methods cost_weighted --seeds 1 --epochs 1 --baseline-epochs 1 --out compared",
    ):
        (root / "out").mkdir()
        code, _ = run(command.split(), root)
        assert code == 0 or (code in (1, 3) and command.startswith("check")), (root / "stderr").read_text()
        shutil.rmtree(root / "out")
        for name in ("stdout", "stderr"):
            (root / name).unlink()


def _scores(root: Path, draw: np.random.Generator) -> None:
    """Of 120 samples, 100 of them with a label."""
    from pyarrow import parquet, table

    classes = ("low", "mid", "high")
    truth = np.arange(120) % 3
    values = draw.dirichlet((1, 1, 1), 120) * 0.5
    values[np.arange(120), truth] += 0.5
    ids, labels = [f"s{i}" for i in range(120)], [classes[k] if i < 100 else "" for i, k in enumerate(truth)]
    columns = {"id": ids, "label": labels} | {f"p:{name}": values[:, k] for k, name in enumerate(classes)}
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (root / "scores.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    parquet.write_table(table(columns), root / "scores.parquet")
    np.savez(root / "scores.npz", id=ids, label=labels, classes=classes, p=values)


def _answers(root: Path) -> None:
    """Two experts' answers, as the page of `csada review` writes them."""
    start = csada.CostMatrix.from_csv(root / "matrix.csv")
    pairs = [("low", "high"), ("high", "low"), ("mid", "low"), ("mid", "high")]
    for who, ratio in (("anna", 2.0), ("ben", 5.0)):
        said = {
            "format": 1,
            "model": "0123",
            "data": "table",
            "classes": start.classes,
            "who": who,
            "when": "2026-01-01",
            "start": start.values.tolist(),
            "pairs": [{"truth": y, "predicted": z, "cost": None, "why": "worse"} for y, z in pairs],
            "comparisons": [{"first": pairs[0], "second": each, "ratio": ratio} for each in pairs[1:]],
            "skipped": [[pairs[1], pairs[2]]],
            "groups": [{"name": "some", "classes": ["low", "mid"]}],
            "labels": [{"sample": "3", "label": "low", "suggested": "mid"}],
        }
        said["pairs"][0]["cost"] = 7
        (root / f"{who}.json").write_text(summed(said))


def _mnist(folder: Path, draw: np.random.Generator) -> None:
    folder.mkdir()
    for part, n in (("train", 5020), ("t10k", 20)):  # 5,000 are for validation
        images, labels = np.zeros((n, 28, 28), np.uint8), np.arange(n, dtype=np.uint8) % 10
        images[:20] = draw.integers(0, 255, (20, 28, 28))
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes(), mtime=0))


def _cifar(folder: Path, draw: np.random.Generator) -> None:
    folder.mkdir()
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz", compresslevel=1) as tar:
        for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
            n = 5000 if name == "data_batch_5" else 20  # 5,000 are for validation
            rows = np.zeros((n, 3072), np.uint8)
            rows[:20] = draw.integers(0, 4, (20, 3072))
            content = pickle.dumps({b"data": rows, b"labels": [i % 10 for i in range(n)]}, protocol=2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with tarfile.open(folder / "cifar-10-python.tar.gz") as tar:
        tar.extractall(folder, filter="data")


def _jpegs(folder: Path, picture: Image.Image) -> None:
    """The archive of CIFAR-10 as JPEG files; 5,000 of them are for validation."""
    folder.mkdir()
    picture.save(packed := io.BytesIO(), "jpeg")
    with tarfile.open(folder / cifar10.JPEG_ARCHIVE, "w:xz", preset=0) as tar:
        for part, n in (("train", 5020), ("test", 20)):
            for i in range(n):
                info = tarfile.TarInfo(f"{part}/{cifar10.CLASSES[i % 10]}/{i:04}.jpg")
                info.size = len(packed.getvalue())
                tar.addfile(info, io.BytesIO(packed.getvalue()))


def _measured(root: Path) -> None:
    """Records of the paper's experiments with a few runs each, and a library of one baseline."""
    results = Path(__file__).parents[2] / "results"
    for folder in ("records", "study"):
        (root / folder).mkdir()
    for name in (
        "table-mnist-fast",
        "convergence-cifar10-fast",
        "lambda-cifar10-fast",
        "failure-mnist-fast",
        "toy-fast",
    ):
        record = json.loads((results / f"{name}.json").read_text())
        record["runs"] = sorted(record["runs"], key=lambda run: "panels" not in run["result"])[:6]
        record["baselines"] = record["baselines"][:1]
        (root / "records" / f"{name}.json").write_text(json.dumps(record))
    about = json.loads((results / "library-wine.json").read_text())
    about["networks"] = {name: each for name, each in about["networks"].items() if name.startswith("0/")}
    (root / "study" / "library-wine.json").write_text(json.dumps(about))
    with np.load(results / "library-wine.npz") as arrays:
        np.savez(root / "study" / "library-wine.npz", **{k: v for k, v in arrays.items() if k.startswith("0/")})


def _models(root: Path) -> None:
    """Fitted classifiers of a table and of images, a baseline, the same as ONNX, and loose weights."""
    import torch

    from csada.classifier import Classifier
    from csada.models import create
    from csada.workflow.fit import improve

    costs = csada.CostMatrix.from_csv(root / "costs.csv")
    table = csada.data.load(root / "table.csv")
    photos = csada.data.load(root / "photos", size=12)
    for name, splits, kind, arguments in (
        ("model", table, "mlp", {"features": table.shape[0], "hidden": [4]}),
        ("seeing", photos, "cnn", {"channels": 3, "size": 12, "width": 2}),
    ):
        network = create(kind, len(splits.classes), **arguments)
        baseline = Classifier.of(network, splits, architecture=kind, arguments=arguments)
        own = costs.ordered(splits.classes) if name == "model" else csada.CostMatrix.uniform(2)
        own = csada.CostMatrix(own.values, splits.classes)
        improve(baseline, splits, own, options={"epochs": 0}, refer=0.1).save(root / name)
        Classifier.load(root / name).export(root / f"{name}.onnx")
    baseline = create("mlp", 3, features=table.shape[0])
    Classifier.of(baseline, table, architecture="mlp", arguments={"features": table.shape[0]}).save(root / "baseline")
    torch.save(baseline.state_dict(), root / "weights.pt")
    from csada.workflow.train import train

    train(table, "mlp", epochs=2, checkpoints=root / "resumed")
    torch.save(create("cnn", 10, channels=3, size=8).state_dict(), root / "seeing.pt")  # of colours; digits are grey
    (root / "weights.safetensors").write_bytes((root / "baseline" / "model.safetensors").read_bytes())
