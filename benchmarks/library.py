"""A library of networks from one baseline: what restarts, mixup and distillation are worth under the decision rule.

    python benchmarks/library.py train OUT --seconds 540     # on a GPU: OUT/library-cifar10.npz and .json
    python benchmarks/library.py judge results               # on any machine, from these two files

For each of two baselines (ResNet-34, CIFAR-10, recipe "fast"): a restart, two restarts with mixup, a student of the first
three, and as time allows restarts whose mixing partners are aimed at a cost matrix. The .npz holds the logits of every network
on validation and test, of the images and of their mirror images; the .json how long each took. `judge` chooses on validation
alone: the temperatures, and the strength within half a point of the baseline's accuracy. It prints the share of the baseline's
cost by argmax that is removed on test.
"""

import argparse
import dataclasses
import time
from pathlib import Path

import numpy as np

import csada
from csada.evaluation import predict_logits
from csada.files import whole
from csada.methods.distillation import Distillation, Teachers
from csada.models.modes import best_device, device_of
from csada.reading import plain, write_json
from csada.workflow.candidates import confusion_of
from csada.workflow.runs import environment
from csada.workflow.settings import restart
from csada.workflow.train import train

NAME, BUDGET, MATRICES, PAIRS = "library-cifar10", 0.005, 10, 20
VEHICLES = (0, 1, 8, 9)
LIBRARY = {
    "baseline": ["baseline"],
    "restart": ["restart"],
    "mixup": ["mixup"],
    "baseline + restart": ["baseline", "restart"],
    "baseline + mixup": ["baseline", "mixup"],
    "baseline + restart + mixup": ["baseline", "restart", "mixup"],
    "baseline + two mixups": ["baseline", "mixup", "mixup-2"],
    "all four": ["baseline", "restart", "mixup", "mixup-2"],
    "three + aimed at blocks": ["baseline", "restart", "mixup", "aimed-blocks"],
    "three + aimed at pareto:0": ["baseline", "restart", "mixup", "aimed-pareto0"],
    "student": ["student"],
    "student, temperature 2": ["student-2"],
    "all four + student": ["baseline", "restart", "mixup", "mixup-2", "student"],
}


def blocks(classes=10):
    """An animal labelled as a vehicle, or the other way round, costs 10; any other mistake 1."""
    vehicle = np.isin(np.arange(classes), VEHICLES)
    values = np.where(vehicle[:, None] != vehicle, 10.0, 1.0)
    np.fill_diagonal(values, 0)
    return csada.CostMatrix(values)


def mirrored(part):
    return dataclasses.replace(part, x=part.x.flip(-1))


class Store:
    """What has been trained, written after every network."""

    def __init__(self, out, splits, settings):
        self.out, self.splits, self.arrays = out, splits, {}
        self.record = {"data": splits.name, "samples": {n: len(p) for n, p in splits.parts.items()}, **settings}
        self.record |= {"environment": plain(environment()), "networks": {}}
        for part in ("validation", "test"):
            self.arrays[f"{part}_labels"] = splits.parts[part].y.numpy().astype(np.uint8)

    def add(self, name, model, seconds, history, method, options):
        accuracy = {}
        for part in ("validation", "test"):
            for view, data in {
                "identity": self.splits.parts[part],
                "mirror": mirrored(self.splits.parts[part]),
            }.items():
                scores = predict_logits(model, data)
                self.arrays[f"{name}/{part}/{view}"] = scores.logits.numpy().astype(np.float16)
                accuracy[f"{part} {view}"] = float((scores.logits.argmax(1) == scores.labels).float().mean())
        self.record["networks"][name] = {
            "method": method,
            "options": options,
            "epochs": len(history),
            "seconds": round(seconds, 2),
            "epoch_seconds": round(float(np.median([line["seconds"] for line in history])), 3),
            "loss": history[-1]["loss"],
            "accuracy": accuracy,
        }
        self.out.mkdir(parents=True, exist_ok=True)
        with whole(self.out / f"{NAME}.npz") as partial, partial.open("wb") as file:
            np.savez_compressed(file, **self.arrays)
        write_json(self.out / f"{NAME}.json", self.record)
        print(f"{time.perf_counter():7.0f} s  {name:18s} {seconds:6.1f} s  {accuracy}", flush=True)


def restarted(store, name, start, costs, method, seed, epochs, **options):
    """A restart from `start` under that method; the network."""
    precision = "bf16" if device_of(start).type == "cuda" else "32"
    settings = restart("residual") | {"epochs": epochs, "precision": precision, "seed": seed}
    began = time.perf_counter()
    fitted = csada.fit(start, store.splits, method, costs, **settings, **options)
    taken = time.perf_counter() - began
    kept = {k: v for k, v in options.items() if k != "confusion"}
    if isinstance(method, Distillation):
        kept = {"views": method.teachers.views, "temperature": method.temperature, "alpha": method.alpha}
    called = method if isinstance(method, str) else "distillation"
    store.add(name, fitted.model, taken, fitted.history, called, settings | kept)
    return fitted.model


def make(arguments):
    began = time.perf_counter()
    splits = csada.data.load("cifar10", scale=arguments.scale)
    print(f"{splits!r} after {time.perf_counter() - began:.0f} s", flush=True)
    uniform = csada.CostMatrix.uniform(10)
    store = Store(arguments.out, splits, {"model": arguments.model, "recipe": "fast"})
    longest, networks = 0.0, {}

    def left(factor=1.0):
        """Whether as much time is left as the longest restart took, times a factor."""
        return arguments.seconds - (time.perf_counter() - began) > factor * longest

    def add(name, seed, method="cross_entropy", costs=uniform, number=1, **options):
        nonlocal longest
        then = time.perf_counter()
        start = networks["baseline", seed]
        networks[name, seed] = restarted(
            store, f"{seed}/{name}", start, costs, method, 10 * seed + number, arguments.epochs, **options
        )
        longest = max(longest, time.perf_counter() - then)

    def student(name, seed, **options):
        teachers = Teachers([networks[n, seed] for n in ("baseline", "restart", "mixup")], ("identity", "mirror"))
        add(name, seed, Distillation(uniform, teachers, **options), number=4)

    for seed in (0, 1):
        then = time.perf_counter()
        classifier = train(splits, arguments.model, "fast", seed=seed, epochs=arguments.baseline_epochs)
        history = [vars(line) for line in classifier.training.history]
        networks["baseline", seed] = classifier.network
        store.add(
            f"{seed}/baseline", classifier.network, time.perf_counter() - then, history, "cross_entropy", {"seed": seed}
        )
        add("restart", seed)
        add("mixup", seed, "mixup", number=2)
        add("mixup-2", seed, "mixup", number=3)
        student("student", seed)
    scores = predict_logits(networks["baseline", 0], splits, part="validation")
    for name, costs in {"aimed-blocks": blocks(), "aimed-pareto0": csada.CostMatrix.pareto(10, seed=0)}.items():
        if left():
            add(name, 0, "mixup", costs, number=5, partners="cost", confusion=confusion_of(scores).tolist())
    if left(1.2):
        student("student-2", 0, temperature=2.0)


# -- what they are worth ---------------------------------------------------------------------------


def averaged(arrays, seed, names, part, views):
    """[N, K]: log of the mean probability over networks and views, each network at its own temperature on validation."""
    total = 0.0
    labels = arrays["validation_labels"].astype(np.int64)
    for name in names:
        logits = {view: arrays[f"{seed}/{name}/{part}/{view}"].astype(np.float64) for view in views}
        held_out = np.concatenate([arrays[f"{seed}/{name}/validation/{view}"].astype(np.float64) for view in views])
        rule = csada.MinimumExpectedCost.calibrated(held_out, np.tile(labels, len(views)), csada.CostMatrix.uniform(10))
        total = total + sum(rule.probabilities(values) for values in logits.values())
    return np.log(total / len(names) / len(views) + 1e-30)


def removed(costs, needed, start, found, labels):
    """% of the cost on test of `start` by argmax that `found` removes under the rule, chosen on validation."""
    rule = csada.MinimumExpectedCost.within_budget(found["validation"], labels["validation"], costs, needed=needed)
    truth = labels["test"]
    paid = [costs.values[truth, decided].sum() for decided in (start["test"].argmax(1), rule(found["test"]))]
    lost = 100 * float((start["test"].argmax(1) == truth).mean() - (rule(found["test"]) == truth).mean())
    return 100 * (1 - paid[1] / paid[0]), lost


def judge(arguments):
    arrays = dict(np.load(arguments.out / f"{NAME}.npz"))
    labels = {part: arrays[f"{part}_labels"].astype(np.int64) for part in ("validation", "test")}
    print(
        "| scores under the rule | pareto | blocks | pareto:0 | pairs | accuracy | points lost |\n| --- |"
        + " --- |" * 6
    )
    matrices = [csada.CostMatrix.pareto(10, seed=seed) for seed in range(MATRICES)]
    cells = {}
    for seed in (0, 1):
        start = {part: arrays[f"{seed}/baseline/{part}/identity"].astype(np.float64) for part in labels}
        needed = float((start["validation"].argmax(1) == labels["validation"]).mean()) - BUDGET
        counts = np.zeros((10, 10))
        np.add.at(counts, (labels["validation"], start["validation"].argmax(1)), 1)
        np.fill_diagonal(counts, -1)
        worst = np.argsort(-counts, axis=None, kind="stable")[:PAIRS]
        groups = {
            "pareto": matrices,
            "blocks": [blocks()],
            "pareto:0": matrices[:1],
            "pairs": [csada.CostMatrix.single_pair(10, *map(int, divmod(pair, 10))) for pair in worst],
        }
        for row, names in LIBRARY.items():
            if not all(f"{seed}/{name}/test/identity" in arrays for name in names):
                continue
            for views in (("identity",), ("identity", "mirror")):
                found = {part: averaged(arrays, seed, names, part, views) for part in labels}
                results = {g: [removed(c, needed, start, found, labels) for c in of] for g, of in groups.items()}
                line = [float(np.mean([r[0] for r in of])) for of in results.values()]
                line += [100 * float((found["test"].argmax(1) == labels["test"]).mean())]
                line += [float(np.mean([r[1] for r in results["pareto"]]))]
                cells.setdefault(row + (", mirrored" if len(views) > 1 else ""), []).append(line)
    for row, lines in cells.items():
        print(
            f"| {row} | "
            + " | ".join(" / ".join(f"{v:.1f}" for v in column) for column in zip(*lines, strict=True))
            + " |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "judge"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--model", default="resnet34")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--baseline-epochs", type=int, default=60)
    arguments = parser.parse_args()
    if arguments.what == "judge":
        judge(arguments)
    else:
        print(best_device(), flush=True)
        make(arguments)


if __name__ == "__main__":
    main()
