"""Networks aimed at the costs as a fourth member, against a generic fourth member of equal training time. Validation only.

    pair margins     cross-entropy of logits + log(1 + c(y, z) / mean cost), after Narasimhan and Menon (2021)
    coarse expert    a network that learns the two groups alone; its posterior of them and the average's, geometric mean
    soft labels      CSADA whose adversarial examples are 0.7 of their own class and 0.3 of the target
    at the boundary  CSADA whose attacks end with the last point that is still classified rightly

The first three members are those of the study's libraries, the generic fourth is their second mixup. A mixture is judged as
`auto` judges it, at an accuracy budget of 0. Run:  python benchmarks/aimed.py NAME ...  ->  results/aimed.json
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from csada.attacks import Ascent, Outcome, ascend
from csada.costs import CostMatrix
from csada.decisions import fit_temperature
from csada.decisions.rules import mean_cost
from csada.decisions.selection import Judge
from csada.evaluation import predict_logits
from csada.methods.base import Loss, scores
from csada.methods.csada import CSADA, attack_view
from csada.models import create
from csada.models.modes import borrowed_eval
from csada.paper import problems
from csada.paper.library import MEMBERS, read_library
from csada.paper.sources import SOURCES
from csada.reading import read_json, write_json
from csada.training import fit
from csada.workflow.candidates import candidates
from csada.workflow.train import train

RESULTS = Path(__file__).parents[1] / "results"
SEEDS = {"breast_cancer": 5, "digits": 1, "mnist_few": 1}
WORK = 2.17  # of an epoch of CSADA with 16 tasks of 5 steps in a batch of 64, in epochs of cross-entropy


@dataclass(frozen=True)
class PairMargins(Loss):
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        logits = scores(model, x)
        margins = torch.as_tensor(np.log1p(self.costs.values / mean_cost(self.costs)), dtype=logits.dtype)
        return F.cross_entropy(logits + margins[y], y)


@dataclass(frozen=True)
class Attacked(Loss):
    """CSADA's draws and attacks. soft: the share of the target in the label. at: the last point before the boundary."""

    soft: float = 0.0
    at: bool = False

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        method = CSADA(self.costs, tasks=16, step_size=0.02, steps=5, weight=1.0)
        tasks = method.draw(y, generator)
        clean = F.cross_entropy(scores(model, x), y)
        if tasks is None:
            return clean
        own, target = y[tasks.sample], tasks.target
        start = x[tasks.sample]
        with borrowed_eval(model):
            found = ascend(attack_view(model, start), start, own, target, Ascent.of(method), trajectory=True)
        moved = found.delta
        if self.at:
            assert found.trajectory is not None
            before = (found.steps - 1).clamp(min=0)
            last = found.trajectory[before, torch.arange(len(own))]
            reached = (found.outcome == Outcome.REACHED).reshape(-1, *(1,) * (start.ndim - 1))
            moved = torch.where(reached, last, moved)
        logits = scores(model, start + moved)
        losses = [F.cross_entropy(logits, label, reduction="none") for label in (own, target)]
        return clean + method.weight * tasks.coefficient.to(clean.dtype) @ torch.lerp(*losses, self.soft)


def run(name: str, seed: int, known: dict[str, Any]) -> None:
    source, library = SOURCES[name], read_library(RESULTS, name)
    assert library is not None
    splits, truth = source.load(name, seed), library.labels(seed, "validation")
    given = train(
        splits, source.model, seed=seed, epochs=source.epochs, checkpoints=Path("runs/study") / name / str(seed)
    )
    k = len(splits.classes)
    plain = next(c for c in candidates(given, splits, CostMatrix.uniform(k)) if c.method == "cross_entropy")
    options = plain.options | {"seed": 4000 + seed}
    stored = {m: library.scores(seed, "validation", m)["identity"] for m in MEMBERS}

    def posterior(logits: Any, labels: Any = truth) -> Any:
        return softmax(np.asarray(logits) / fit_temperature(logits, labels), axis=1)

    p = {m: posterior(each) for m, each in stored.items()}
    three = sum(p[m] for m in MEMBERS[:3]) / 3
    right = (stored[MEMBERS[0]].argmax(1) == truth).astype(float)

    def trained(method: Any, costs: CostMatrix, work: float = 1.0, data: Any = splits) -> tuple[Any, float]:
        arguments = given.members[0].arguments
        net = create(source.model, len(data.classes), seed=options["seed"], **arguments)
        begun = time.process_time()
        epochs = max(round(options["epochs"] / work), 1)
        model = fit(net, data, method, costs, **options | {"epochs": epochs}).model
        return predict_logits(model, data, part="validation").logits.numpy(), time.process_time() - begun

    targets = ["pareto:0", "pareto:1", "block:10:both"] if source.group else ["pareto:0", "pareto:1"]
    for problem in targets:
        costs = problems.costs(problem, k, source.group)
        judge = Judge(p, truth, costs, 0.0, right)
        generic = judge((3 * three + p[MEMBERS[3]]) / 4)[0]
        tried = {
            "pair margins": (PairMargins(costs), 1.0),
            "soft labels": (Attacked(costs, soft=0.3), WORK),
            "at the boundary": (Attacked(costs, at=True), WORK),
            "as CSADA": (Attacked(costs), WORK),
        }
        mixtures = {}
        for each, (method, work) in tried.items():
            logits, seconds = trained(method, costs, work)
            mixtures[each] = (3 * three + posterior(logits)) / 4, seconds
        if problem.startswith("block"):
            group = torch.from_numpy(np.isin(np.arange(k), source.group or ()).astype(np.int64))
            parts = {part: replace(own, y=group[own.y]) for part, own in splits.parts.items()}
            coarse = replace(splits, **parts, classes=("others", "group"))
            logits, seconds = trained("cross_entropy", CostMatrix.uniform(2), data=coarse)
            two = posterior(logits, coarse.validation.y.numpy())
            own = np.stack([three[:, group.numpy() == g].sum(1) for g in (0, 1)], axis=1)
            moved = three * np.sqrt(two / np.maximum(own, 1e-12))[:, group.numpy()]
            mixtures["coarse expert"] = moved / moved.sum(1, keepdims=True), seconds
        base = costs.values[truth, stored[MEMBERS[0]].argmax(1)].mean()
        for each, (mixture, seconds) in mixtures.items():
            saved = 100 * (generic - judge(mixture)[0]) / base
            line = {
                "removed_more": round(float(saved.mean()), 2),
                "standard_error": round(float(saved.std()) / len(saved) ** 0.5, 2),
                "cpu_seconds": round(seconds, 1),
            }
            known[f"{name}/{seed}/{problem}/{each}"] = line
            print(name, seed, problem, each, line, flush=True)
        write_json(RESULTS / "aimed.json", known)


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = RESULTS / "aimed.json"
    record = read_json(path, dict) if path.exists() else {}
    for data in sys.argv[1:] or SEEDS:
        for number in range(SEEDS[data]):
            run(data, number, record)
