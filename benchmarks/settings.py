"""Which settings should a table's methods have? Asked of validation data, one fine-tuning per candidate.

    python benchmarks/settings.py table-cifar10 csada:lr=3e-5 csada:lr=1e-4 sosr:lr=1e-4 sosr:lr=3e-4

A candidate is what differs from the experiment's file. Costs are drawn with a seed that no table has, so the table's own
matrices are new to what is chosen. The record, results/settings-NAME-SCALE.json, holds validation numbers alone; the
experiment's file states what was taken from it.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from csada.errors import RunError
from csada.metrics import accuracy, weighted_error_rate
from csada.paper.record import MethodResult, Pareto, cost_matrix
from csada.paper.run import Run
from csada.paper.spec import known_by, load_spec, run_configs
from csada.paper.sweep import attempt, plan_runs
from csada.reading import read_json, write_json
from csada.workflow.runs import environment

COSTS, SEED = 100, 100  # of the cost matrix, of the fine-tuning


def candidate(text):
    """csada:lr=1e-5,weight=2 -> ("csada", {"lr": 1e-5, "weight": 2.0})"""
    method, _, settings = text.partition(":")
    return method, {key: float(value) for key, value in (item.split("=") for item in settings.split(","))}


def make_run(spec, method, settings, runs):
    options = {method: spec.options[method] | settings}
    (config,) = run_configs(replace(spec, methods=[method], options=options, replications=1, matrices=1), {})
    costs = Pareto("pareto", COSTS) if spec.costs == "pareto" else config.costs
    config = replace(config, seed=SEED, costs=costs)
    return Run(config, runs / "settings" / known_by(config))


def do(run):
    """Why it failed, if it did."""
    try:
        attempt(run, None, lambda *_: None)
    except RunError as error:
        return str(error)


def judged(counts, costs):
    return {"cost": weighted_error_rate(counts, costs), "accuracy": accuracy(counts)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("candidates", type=candidate, nargs="+")
    parser.add_argument("--scale", default="fast")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args()
    spec = load_spec(given.name, given.scale)
    for baseline in plan_runs(spec, given.runs).baselines:
        do(baseline)
    trials, best = [], {}
    for method, settings in given.candidates:
        run = make_run(spec, method, settings, given.runs)
        trial = {"method": method, "settings": settings}
        if failed := do(run):
            trial["failed"] = failed
        else:
            result = read_json(run.folder / "result.json", MethodResult)
            costs = cost_matrix(run.config.costs, result.data.classes)
            trial["baseline"] = judged(result.baseline.validation, costs)
            trial["validation"] = judged(result.validation, costs)
            best[method] = min(trial, best.get(method, trial), key=lambda t: t["validation"]["cost"])
        print(trial, flush=True)
        trials.append(trial)
    chosen = {method: trial["settings"] for method, trial in best.items()}
    about = {"table": given.name, "scale": given.scale, "costs": run.config.costs, "seed": SEED}
    name = f"settings-{given.name.removeprefix('table-')}-{given.scale}.json"
    write_json(given.results / name, about | {"trials": trials, "chosen": chosen, "environment": environment()})
    print(chosen)


if __name__ == "__main__":
    main()
