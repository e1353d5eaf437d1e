"""Twelve runs on a Ray cluster of two nodes with one core each, against one worker of this machine: same records, what time?

Both times hold the training of the baseline, which all runs wait for.

python benchmarks/engine.py            # several minutes; writes results/engine.json, where the machine is idle
python benchmarks/engine.py --seconds 2 --anyway --out out/engine.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import torch

from csada.paper.record import written
from csada.paper.spec import load_spec
from csada.paper.sweep import collect, run_experiment
from csada.reading import write_json
from csada.workflow.engine import Engine
from csada.workflow.runs import environment

SPEC = """
title = "twelve runs"
data = "digits"
model = "cnn"
costs = "pareto"
methods = ["csada"]
[smoke]
replications = 1
matrices = 12
options.every = {{ epochs = {epochs}, momentum = 0.0 }}
"""


BAR = 0.65  # of the time with one worker
IDLE = 1.0  # load average up to which the record is overwritten


def sweep(folder: Path, engine: Engine, epochs: int) -> tuple[float, dict[str, Any]]:
    """(seconds, the baseline's among them; the record)."""
    folder.mkdir()
    (folder / "twelve.toml").write_text(SPEC.format(epochs=epochs))
    spec = load_spec(str(folder / "twelve.toml"), "smoke")
    started = time.perf_counter()
    report = run_experiment(spec, folder / "runs", engine=engine)
    seconds = time.perf_counter() - started
    assert len(report.done) == 13 and not report.failed, report
    return seconds, written(collect(spec, folder / "runs"))


def shortest_of(record: dict[str, Any]) -> float:
    return min(float(run["result"]["seconds"]) for run in record["runs"])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """But for seconds, and for what names the machine."""

    def told(record: dict[str, Any]) -> list[Any]:
        runs = (*record["baselines"], *record["runs"])
        return [(run["config"], {k: v for k, v in run["result"].items() if k != "seconds"}) for run in runs]

    return told(one) == told(other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="that each run takes, at least")
    parser.add_argument("--out", type=Path, default=Path("results/engine.json"))
    parser.add_argument("--anyway", action="store_true", help="overwrite the record on a machine that is busy, too")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    if load > IDLE and given.out.exists() and not given.anyway:
        sys.exit(f"the load average is {load:.2f}: {given.out} is only overwritten up to {IDLE:g}, or with --anyway")
    torch.set_num_threads(1)
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, tried = sweep(folder / "tried", Engine(), 4)
        epochs = int(1.1 * given.seconds / shortest_of(tried) * 4) + 1
        while True:  # the estimate may be short: a machine is not equally fast at all times
            before = os.times()
            local, first = sweep(folder / f"local-{epochs}", Engine(), epochs)
            used = os.times()
            if (shortest := shortest_of(first)) >= given.seconds:
                break
            epochs = int(1.1 * given.seconds / shortest * epochs) + 1
        small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args=small | {"include_dashboard": False})
        cluster.add_node(**small)
        os.environ["RAY_ADDRESS"] = cluster.address
        try:
            ray, second = sweep(folder / "ray", Engine("ray"), epochs)
        finally:
            cluster.shutdown()
    took = sorted(run["result"]["seconds"] for run in first["runs"])
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "runs": 12,
        "seconds_of_a_run": {"least": took[0], "most": took[-1]},
        "local_seconds": local,
        "ray_seconds": ray,
        "ratio": ray / local,
        "bar": BAR,
        "met": ray / local <= BAR,
        "same_records": same(first, second),
        "load_average_at_start": load,
        "local_cpu_seconds": used.user + used.system - before.user - before.system,
        "environment": environment(),
    }
    write_json(given.out, found)
    print(json.dumps({k: v for k, v in found.items() if k != "environment"}, indent=1))


if __name__ == "__main__":
    main()
