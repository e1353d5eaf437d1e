"""From a folder of photographs to a report: how long a newcomer waits, with every setting as it comes.

    python benchmarks/first_model.py FOLDER     (photographs in a folder for each class; ten minutes on two cores, less on more)

2,000 photographs, 400 of each of five classes; labelling the first class as the second costs 10, any other mistake 1. Each
command is a process of its own. Writes results/first-model.json.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from csada import Classifier
from csada.reading import write_json
from csada.workflow.runs import environment

RESULT = Path(__file__).parents[1] / "results" / "first-model.json"
COMMANDS = ("init photos", "costs check", "train", "fit", "report", "export", "predict photos --out decisions.csv")
CLASSES, EACH = ["cat", "dog", "deer", "frog", "horse"], 400


def timed(words: str, folder: Path) -> dict[str, float]:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "csada", *words.split()], cwd=folder, check=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begin
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(wall, 1), "cpu_seconds": round(spent, 1)}


def copied(photos: Path, classes: list[str], folder: Path) -> None:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for file in sorted((photos / name).iterdir())[:EACH]:
            shutil.copy(file, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--classes", nargs=len(CLASSES), default=CLASSES)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, spent = Path(name), {}
        copied(given.photos, given.classes, folder / "photos")
        load = os.getloadavg()[0]
        for words in COMMANDS:
            spent[words] = timed(words, folder)
            if words.startswith("init"):
                with (folder / "costs.csv").open("a") as costs:
                    costs.write(",".join((*given.classes[:2], "10\n")))
        evidence = Classifier.load(folder / "model").evidence
        assert evidence is not None
        rows: dict[str, Any] = {}
        for part in ("validation", "test"):
            for row, found in getattr(evidence, part).items():
                rows.setdefault(row, {})[part] = {"mean_cost": found.mean_cost, "accuracy": found.accuracy}
        record = {
            "date": str(date.today()),
            "classes": given.classes,
            "photographs": len(CLASSES) * EACH,
            "commands": spent,
        }
        to_report = [spent[words] for words in COMMANDS[: COMMANDS.index("report") + 1]]
        record |= {f"{key}_to_report": round(sum(each[key] for each in to_report), 1) for key in to_report[0]}
        record |= {"rows": rows, "saved": evidence.chosen, "cheapest_on_validation": evidence.cheapest()}
        write_json(given.out, record | {"load_average_at_start": load, "environment": vars(environment())})


if __name__ == "__main__":
    main()
