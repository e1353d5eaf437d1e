"""Every command of csada, as the harness starts it: on what, which files it makes, and where it keeps an unfinished run.

A new command that is not listed here fails the test. One with another engine is a line more: give it a name after a slash
("reproduce/ray"), the words with the flag, and in `progress` the folders in which it keeps what is not finished.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    words: str
    made: tuple[str, ...]  # files and folders that are, each as a whole, as before or finished
    progress: tuple[str, ...] = ()  # where the state of an unfinished run is; the end alone counts there
    log: str = ""  # a file that grows: what it holds more than once counts once
    slow: bool = False  # not in the short sample


FITTED = "fit baseline table.csv --costs costs.csv"

COMMANDS: dict[str, Command] = {
    "init": Command("init table.csv --out project --costs costs.csv", ("project/csada.toml",)),
    "init/costs": Command("init photos --out project", ("project/csada.toml", "project/costs.csv")),
    "data show": Command("data show photos --figure out/classes.png", ("out/classes.png",)),
    "data save": Command("data save digits out/saved --scale 0.02", ("out/saved",)),
    "costs new": Command("costs new table.csv --out matrix.csv --matrix --force", ("matrix.csv",)),
    "costs merge": Command("costs merge anna.json ben.json --out costs.csv --force", ("costs.csv",)),
    "train": Command("train table.csv --model mlp --epochs 3 --out version", ("version",)),
    "train/images": Command("train photos --model cnn --size 8 --epochs 2 --out new/model", ("new/model",)),
    "fit": Command(
        "fit digits digits --scale 0.4 --costs pareto:0 --members 2 --epochs 1 --out version", ("version",), slow=True
    ),
    "fit/method": Command(f"{FITTED} --method csada --epochs 3 --out version", ("version",)),
    "fit/priors": Command("fit model table.csv --costs costs.csv --priors priors.csv --out version", ("version",)),
    "tune": Command(
        "tune baseline table.csv --costs costs.csv --epochs 1 --trials 3 --out out/search",
        (
            "out/search/model",
            "out/search/tuning.json",
            "out/search/search.json",
            "out/search/frontier.png",
            "out/search/frontier.svg",
        ),
        progress=("out/search",),
        slow=True,
    ),
    "compare": Command(
        "compare table.csv --costs costs.csv --methods cost_weighted --seeds 2 --epochs 1 --baseline-epochs 1 --out out/all",
        (),
        progress=("out/all",),
    ),
    "evaluate": Command("evaluate model table.csv --scores scores.csv --force --seen keep", ("scores.csv",)),
    "check": Command(
        "check checked table.csv --criteria limits.toml --junit out/check.xml",
        ("checked/checks.json", "checked/README.md", "out/check.xml"),
    ),
    "report": Command("report model --out report.html", ("report.html",)),
    "review": Command("review seeing photos --out review.html", ("review.html",)),
    "predict": Command("predict model table.csv --out decisions.csv", ("decisions.csv",)),
    "predict/log": Command(
        "predict model table.csv --batch-size 8 --out decisions.csv --log decisions.jsonl",
        ("decisions.csv",),
        log="decisions.jsonl",
    ),
    "monitor": Command(
        "monitor model decisions.jsonl --every 90 --no-change --out monitor.html --suggest-priors out/new.csv",
        ("monitor.html", "out/new.csv"),
    ),
    "monitor/recalibrate": Command(
        "monitor model decisions.jsonl --every 90 --labels late.csv --recalibrate out/new", ("out/new",)
    ),
    "export": Command("export model --out model.onnx", ("model.onnx",)),
    "export/folder": Command("export seeing", ("seeing/model.onnx",), slow=True),
    "decide": Command(
        "decide scores.csv --costs costs.csv --out decisions.csv --save version", ("decisions.csv", "version")
    ),
    "diff": Command("diff model version table.csv --out diff.html", ("diff.html",)),
    "demo": Command("demo --seeds 2 --out out/demo", ("out/demo/demo.png", "out/demo/demo.svg"), slow=True),
    "toy": Command("toy --seeds 1 --out out/toy", ("out/toy/toy.png", "out/toy/toy.svg"), slow=True),
    "tabular": Command("tabular --seeds 2 --out out/tabular.json", ("out/tabular.json",), slow=True),
    "reproduce": Command(
        "reproduce toy --scale smoke --runs runs --results out/results", (), progress=("runs", "out/results"), slow=True
    ),
    "reproduce/ray": Command(
        "reproduce toy --scale smoke --engine ray --runs runs --results out/results",
        (),
        progress=("runs", "out/results"),
        slow=True,
    ),
    "study": Command(
        "study wine --baselines 1 --runs runs --results out/results", (), progress=("runs", "out/results"), slow=True
    ),
    "tables": Command("tables --results records --out out/tables", (), progress=("out/tables",)),
    "figures": Command("figures --results records --out out/figures", (), progress=("out/figures",), slow=True),
}

NOTHING = {
    "costs check": "only prints",
    "data fetch": "needs a network; tests/test_fetch.py cuts its downloads short and resumes them on a server of its own",
}
