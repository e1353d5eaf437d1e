"""Every file that csada reads, how it may be changed, and the commands that then read it.

A new reader is a line here and, if it needs one, a good file in good.py. In a command OUT is a folder that may be written to;
{0}, {1}, ... are drawn from `words`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from changes import (
    Change,
    answers_of,
    any_of,
    bytes_or_place,
    csv_of,
    header_of,
    json_of,
    library_of,
    lines_of,
    manifest_of,
    npz_of,
    onnx_of,
    packed_of,
    parquet_of,
    png_of,
    sealed_of,
    tar_of,
    tensors_of,
    toml_of,
    torch_of,
    zip_of,
)


@dataclass(frozen=True)
class Reader:
    file: str  # that is changed; "" where the hostile thing is a word of the command
    commands: tuple[str, ...]
    change: Change = bytes_or_place
    words: tuple[tuple[str, ...], ...] = ()
    primed: bool = False  # the command runs once before: it writes the file


SAVED = (
    "predict model new.csv",
    "predict model new.csv --all --format jsonl",
    "report model --out OUT/r.html",
    "evaluate model table.csv",
    "fit model table.csv --costs costs.csv --epochs 0 --out OUT/m",
    "check model table.csv --criteria limits.toml",
    "review model table.csv --out OUT/r.html",
    "diff model version table.csv --out OUT/d.html",
)
SEEING = (
    "predict seeing image.png photos",
    "report seeing --out OUT/r.html",
    "evaluate seeing photos",
    "review seeing photos --out OUT/r.html",
)
TABLE = (
    "data show table.csv",
    "predict model table.csv",
    "evaluate model table.csv",
    "costs new table.csv --out OUT/c.csv",
)
RULE = "fit model table.csv --costs {} --method cross_entropy --epochs 0 --out OUT/m"
REPRODUCE = "reproduce mine.toml --scale smoke"
CHECK = "check model table.csv --criteria limits.toml"
FIT = "fit baseline table.csv --costs uniform --method {0} --epochs 1 --out OUT/m --set {1}={2}"
OPTIONS = (
    "steps",
    "seed",
    "epochs",
    "schedule",
    "weight_decay",
    "batch_size",
    "lr",
    "precision",
    "tau",
    "tasks",
    "epsilon",
    "norm",
    "step",
    "weight",
    "alpha",
    "optimizer",
    "momentum",
    "nesterov",
    "max_batch",
    "freeze_norm",
    "estimator",
    "bounds",
    "strange",
    "graph",
)
GIVEN = (
    "[]",
    "{}",
    "-1",
    "0",
    "1.5",
    "nan",
    "null",
    "true",
    "3",
    "1e400",
    "1e18",
    "99999999999999999999",
    "x" * 5000,
    "[[1]]",
    "step:0:1",
    "step:-1:x",
    "step:1:1e999",
    '"',
    "\x1b[31m",
    "auto",
    "Infinity",
    "0.5",
    "[1, 2]",
)
FLAGS = (
    "--seed",
    "--epochs",
    "--scale",
    "--size",
    "--label",
    "--ignore",
    "--recipe",
    "--model",
    "--data-dir",
    "--device",
    "--track",
    "--pretrained",
)

READERS: dict[str, Reader] = {
    "model.json": Reader("model/model.json", SAVED, any_of(manifest_of)),
    "model.json of images": Reader("seeing/model.json", SEEING, any_of(manifest_of)),
    "weights of a model": Reader("model/model.safetensors", SAVED[:2], any_of(tensors_of, header_of)),
    "arrays of a model": Reader("model/arrays.safetensors", SAVED, any_of(tensors_of, header_of)),
    "arrays of images": Reader("seeing/arrays.safetensors", SEEING, any_of(tensors_of)),
    "onnx": Reader("model.onnx", ("predict model.onnx new.csv", "predict model.onnx new.csv --all"), any_of(onnx_of)),
    "onnx of images": Reader("seeing.onnx", ("predict seeing.onnx image.png photos",), any_of(onnx_of)),
    "weights": Reader(
        "weights.safetensors",
        ("train table.csv --model mlp --epochs 1 --pretrained weights.safetensors --out OUT/m",),
        any_of(header_of, tensors_of),
    ),
    "torch weights": Reader(
        "weights.pt", ("train table.csv --model mlp --epochs 1 --pretrained weights.pt --out OUT/m",), any_of(torch_of)
    ),
    "torch weights of images": Reader(
        "seeing.pt",
        ("train digits --model cnn --scale 0.1 --epochs 1 --pretrained seeing.pt --out OUT/m",),
        any_of(torch_of),
    ),
    "csada.toml": Reader(
        "csada.toml",
        ("train", "fit", "report", "predict new.csv", "costs check", "evaluate", "data show", "compare", "check"),
        any_of(toml_of),
    ),
    "costs": Reader(
        "costs.csv",
        (
            "costs check costs.csv",
            "costs check costs.csv --data table.csv",
            "evaluate model table.csv --costs costs.csv",
        ),
        any_of(csv_of),
    ),
    "cost matrix": Reader(
        "matrix.csv", ("costs check matrix.csv --json", "evaluate model table.csv --costs matrix.csv"), any_of(csv_of)
    ),
    "table": Reader(
        "table.csv",
        (*TABLE, "data show table.csv --label risk --ignore age", "init table.csv --out OUT/p"),
        any_of(csv_of),
    ),
    "table.parquet": Reader(
        "table.parquet",
        (
            *(command.replace("table.csv", "table.parquet") for command in TABLE),
            "data show table.parquet --label risk --ignore age",
        ),
        any_of(parquet_of),
    ),
    "new rows": Reader("new.csv", ("predict model new.csv", "predict model.onnx new.csv"), any_of(csv_of)),
    **{
        f"image.{suffix}": Reader(
            f"image.{suffix}",
            (f"predict seeing image.{suffix} photos/cat/0.png",),
            any_of(png_of) if suffix == "png" else any_of(),
        )
        for suffix in ("png", "jpg", "bmp", "gif", "tif", "webp", "ppm")
    },
    "image of a folder": Reader(
        "photos/dog/3.png",
        (
            "data show photos",
            "data show photos --skip-bad",
            "evaluate seeing photos --skip-bad",
            "init photos --out OUT/p",
            "predict seeing photos --out OUT/p.csv",
        ),
        any_of(png_of),
    ),
    "mnist images": Reader(
        "mnist/train-images-idx3-ubyte.gz", ("data show mnist --data-dir mnist",), any_of(packed_of)
    ),
    "mnist labels": Reader("mnist/t10k-labels-idx1-ubyte.gz", ("data show mnist --data-dir mnist",), any_of(packed_of)),
    "cifar archive": Reader(
        "cifar/cifar-10-python.tar.gz", ("data show cifar10 --data-dir archive",), any_of(packed_of)
    ),
    "cifar batch": Reader("cifar/cifar-10-batches-py/data_batch_1", ("data show cifar10 --data-dir cifar",)),
    "cifar jpegs": Reader("jpegs/*.tar.xz", ("data show cifar10 --data-dir jpegs",)),
    "pictures of pmi": Reader("pills/valid/*/0.jpg", ("data show pmi --data-dir pills",)),
    "checkpoint": Reader(
        "resumed/.csada/*/checkpoint-0", ("train table.csv --model mlp --epochs 2 --out resumed",), any_of(torch_of)
    ),
    "record of an experiment": Reader(
        "records/*.json",
        ("tables --results records --out OUT/t", "figures --results records --out OUT/f"),
        any_of(json_of),
    ),
    "experiment": Reader(
        "mine.toml",
        ("reproduce mine.toml --scale smoke --runs OUT/r --results OUT/t", f"{REPRODUCE} --runs OUT/r --results done"),
        any_of(toml_of),
    ),
    "runs of an experiment": Reader(
        "runs/*/*/*.json*",
        (f"{REPRODUCE} --runs runs --results OUT/t", f"{REPRODUCE} --runs runs --results OUT/t --limit-minutes 0"),
        any_of(lines_of),
    ),
    "experiment's own record": Reader("done/*.json", (f"{REPRODUCE} --runs OUT/r --results done",), any_of(json_of)),
    "library": Reader(
        "study/library-wine.npz", ("study --results study", "study --list --results study"), any_of(library_of, zip_of)
    ),
    "library.json": Reader(
        "study/library-wine.json", ("study --results study", "study --list --results study"), any_of(json_of)
    ),
    "trials": Reader(
        "search/*.json*",
        ("tune baseline table.csv --costs costs.csv --epochs 1 --trials 2 --out search",),
        any_of(lines_of),
    ),
    "comparison": Reader(
        "compared/compare.json",
        (
            "compare table.csv --costs costs.csv --methods cost_weighted --seeds 1 --epochs 1 "
            "--baseline-epochs 1 --out compared",
        ),
        any_of(json_of),
    ),
    "cache": Reader("cache/*", ("data show photos", "evaluate seeing photos"), primed=True),
    "cache of shards": Reader("cache/*", ("data show shard.tar", "data show keyed.tar"), primed=True),
    "cache of features": Reader(
        "cache/*.features",
        ("train photos --features seeing --epochs 1 --out OUT/m",),
        any_of(sealed_of),
        primed=True,
    ),
    "limits.toml": Reader(
        "limits.toml",
        (CHECK, f"{CHECK} --json", RULE.format("costs.csv") + " --limits limits.toml"),
        any_of(toml_of),
    ),
    "groups": Reader("groups.csv", (f"{CHECK} --groups groups.csv --junit OUT/c.xml",), any_of(csv_of)),
    "checks.json": Reader(
        "checked/checks.json",
        (
            "check checked table.csv --criteria csada.toml --groups groups.csv --junit OUT/c.xml",
            "check checked table.csv --criteria limits.toml",
            "report checked --out OUT/r.html",
        ),
        any_of(manifest_of),
    ),
    "answers": Reader(
        "anna.json",
        (
            "costs merge anna.json ben.json --out OUT/c.csv",
            "costs merge ben.json anna.json --out OUT/c.csv --json",
            "costs merge matrix.csv anna.json --out OUT/c.csv",
        ),
        any_of(answers_of),
    ),
    "costs with referral": Reader(
        "referred.csv",
        (
            "costs check referred.csv",
            "costs merge referred.csv matrix.csv --out OUT/c.csv",
            RULE.format("referred.csv"),
            "decide scores.csv --costs referred.csv --out OUT/d.csv",
        ),
        any_of(csv_of),
    ),
    **{
        f"scores.{suffix}": Reader(
            f"scores.{suffix}",
            (
                f"decide scores.{suffix} --costs costs.csv --out OUT/d.csv",
                f"decide scores.{suffix} --costs referred.csv --out OUT/d.csv --save OUT/m --json",
                f"data show scores.{suffix}",
            ),
            any_of(*changes),
        )
        for suffix, changes in (("csv", [csv_of]), ("npz", [npz_of, zip_of]), ("parquet", [parquet_of]))
    },
    "priors": Reader(
        "priors.csv",
        (
            "fit model table.csv --costs costs.csv --priors priors.csv --out OUT/m",
            "diff model version table.csv --priors priors.csv",
        ),
        any_of(csv_of),
    ),
    "log": Reader(
        "log.jsonl",
        (
            "monitor rule log.jsonl --out OUT/m.html",
            "monitor rule log.jsonl --labels late.csv --every 60 --json",
            "monitor rule log.jsonl --labels late.csv --recalibrate OUT/m --suggest-priors OUT/p.csv",
            "decide scores.csv --rule rule --out OUT/d.csv --log log.jsonl",
            "predict model new.csv --out OUT/d.csv --log log.jsonl",
        ),
        any_of(lines_of),
    ),
    "late labels": Reader("late.csv", ("monitor rule log.jsonl --labels late.csv --out OUT/m.html",), any_of(csv_of)),
    "shard": Reader(
        "shard.tar",
        (
            "data show shard.tar",
            "data show shard.tar --skip-bad",
            "train shard.tar --model cnn --size 12 --epochs 1 --out OUT/m",
            "predict seeing shard.tar",
        ),
        any_of(tar_of),
    ),
    "shard of keys": Reader(
        "keyed.tar",
        (
            "data show keyed.tar",
            "data show keyed.tar --skip-bad",
            "evaluate seeing keyed.tar",
            "predict seeing keyed.tar",
        ),
        any_of(tar_of),
    ),
    "CHANGES.md": Reader(
        "version/CHANGES.md", ("fit version table.csv --costs costs.csv --priors priors.csv --out OUT/m",)
    ),
    "--set": Reader(
        "", (FIT,), words=(("csada", "sosr", "cost_weighted", "mixup", "cross_entropy", "metacost"), OPTIONS, GIVEN)
    ),
    "flags": Reader("", ("train table.csv --model mlp --epochs 1 --out OUT/m {0} {1}",), words=(FLAGS, GIVEN)),
    "names": Reader(
        "",
        (
            "train {0} --epochs 1 --out OUT/m",
            "predict {0} new.csv",
            "predict model {0}",
            "report {0}",
            "costs check {0}",
            "data show {0}",
            "evaluate model table.csv --costs {0}",
            "--project {0} train",
            "fit model table.csv --costs {0} --epochs 0 --out OUT/m",
            "data save digits OUT/{0} --scale 0.01",
            "report model --out {0}",
            "train table.csv --epochs 1 --out {0}",
            "data show photos --figure {0}",
            f"{CHECK} --junit {{0}}",
            f"{CHECK} --groups {{0}}",
            "check model table.csv --criteria {0}",
            "decide scores.csv --costs costs.csv --out {0}",
            "decide {0} --costs costs.csv --out OUT/d.csv",
            "costs merge anna.json ben.json --out {0}",
            "costs merge anna.json {0} --out OUT/c.csv",
            "review model table.csv --out {0}",
            "diff model version table.csv --out {0}",
            "evaluate model table.csv --scores {0}",
            "predict model new.csv --out {0}",
        ),
        words=(
            (
                *GIVEN,
                "pareto:-1",
                "pareto:" + "9" * 400,
                "cifar10",
                "/dev/zero",
                "/dev/null/x",
                "x/" * 300,
                "pipe",
                "nowhere/x",
                "photos",
                "table.csv",
                "*",
                ".",
            ),
        ),
    ),
}


def prepare(reader: str, folder: Path) -> None:
    """What a reader needs beside its file."""
    if reader == "cifar archive":  # a folder with batches would be preferred
        (folder / "archive").mkdir()
        (folder / "archive" / "cifar-10-python.tar.gz").symlink_to(folder / "cifar" / "cifar-10-python.tar.gz")
    import os

    os.mkfifo(folder / "pipe")


def words_of(command: str, reader: Reader, rng: Random) -> list[str]:
    drawn = [rng.choice(some) for some in reader.words]
    found: list[Any] = [word.format(*drawn) if "{" in word else word for word in command.split()]
    return [word.replace("OUT", "out") for word in found]
