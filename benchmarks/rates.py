"""At which learning rate does each method of a table do best? Asked of validation data, one fine-tuning a rate.

    python benchmarks/rates.py table-cifar10 --rates 3e-5 1e-4 3e-4

Costs are drawn with a seed that no table has, so the table's own matrices are new to the chosen rates. The record,
results/rates-NAME-SCALE.json, holds validation numbers alone; the experiment's file states what was chosen.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from csada.experiments.records import environment, read_json, write_json
from csada.experiments.runner import Report, Run, do_runs, make_plan
from csada.experiments.spec import identity, load_spec, make_costs, run_configs
from csada.metrics import accuracy, weighted_error_rate

COSTS, SEED = 100, 100  # of the cost matrix, of the fine-tuning


def candidates(name, scale, rates, runs):
    """A run for every method and rate, and the baselines that they start from."""
    spec = load_spec(name, scale)
    found = []
    for rate in rates:
        options = {method: own | {"lr": rate} for method, own in spec.options.items()}
        for config in run_configs(replace(spec, options=options, replications=1, matrices=1), {}):
            costs = config["costs"] | ({"seed": COSTS} if spec.costs == "pareto" else {})
            config = config | {"seed": SEED, "costs": costs}
            found.append(Run(config, runs / "rates" / identity(config)))
    return make_plan(spec, runs).baselines, found


def judged(counts, costs):
    counts = np.array(counts)
    return {"cost": weighted_error_rate(counts, costs), "accuracy": accuracy(counts)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--scale", default="fast")
    parser.add_argument("--rates", type=float, nargs="+", required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args()
    baselines, runs = candidates(given.name, given.scale, given.rates, given.runs)
    trials, best = [], {}
    for run in (*baselines, *runs):
        report = Report()
        do_runs([] if run.done else [run], None, math.inf, 1, None, report)
        if run in baselines:
            continue
        method, rate = run.config["method"], run.config["options"]["lr"]
        trial = {"method": method, "lr": rate}
        if run.done:
            result = read_json(run.folder / "result.json")
            costs = make_costs(run.config["costs"], result["data"]["classes"])
            trial["baseline"] = judged(result["baseline"]["validation"], costs)
            trial["validation"] = judged(result["validation"], costs)
            if method not in best or trial["validation"]["cost"] < best[method]["validation"]["cost"]:
                best[method] = trial
        else:
            trial["failed"] = report.failed[run.name]
        print(trial, flush=True)
        trials.append(trial)
    chosen = {method: trial["lr"] for method, trial in best.items()}
    name = f"rates-{given.name.removeprefix('table-')}-{given.scale}.json"
    about = {"table": given.name, "scale": given.scale, "costs": runs[0].config["costs"], "seed": SEED}
    write_json(given.results / name, about | {"trials": trials, "chosen": chosen, "environment": environment()})
    print(chosen)


if __name__ == "__main__":
    main()
