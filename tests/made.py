"""Evidence made up on the spot: logits, labels and rules as `csada fit` leaves them, without a model or a training."""

from __future__ import annotations

import numpy as np

from csada.costs import CostMatrix
from csada.decisions import Decision
from csada.evidence import Attacks, Environment, EpochLine, Evidence

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted\" & 'single'",
    "Ünïcødé 薬 🧪",
    "</title><img src=x onerror=alert(2)>",
    "a name that is much too long to be shown in full beside a row of a table",
    *("tra*zo|done", "oxy`co`done", "seven", "{{ 7 * 7 }}", "javascript:alert(3)"),
)
RULE = Decision(temperature=0.35, strength=0.5)


def made_evidence(
    chosen="after + rule",
    classes=HOSTILE,
    rules=None,
    *,
    sure=(2.5, 4.0),
    samples=300,
    costs=None,
    referral_cost=None,
    pictures=True,
    data="<b>pills</b>",
    **changes,
):
    """sure: how far the right class stands out before and after; the noise is the same, so that only this differs."""
    rules = {"before": RULE, "after": RULE} if rules is None else rules
    k, draw = len(classes), np.random.default_rng(0)
    table = np.where(np.eye(k), 0.0, draw.pareto(1.5, (k, k)) + 1) if costs is None else np.asarray(costs, float)
    arrays = {"costs": table} | ({} if referral_cost is None else {"referral_cost": np.array([referral_cost])})
    for part in ("validation", "test"):
        labels = np.arange(samples) % k
        noise = draw.normal(size=(samples, k))
        arrays[f"{part}_labels"] = labels
        for side, distance in zip(rules, sure, strict=False):
            arrays[f"{side}_{part}"] = (noise + distance * np.eye(k)[labels]).astype(np.float32)
    if pictures:
        images = draw.integers(256, size=(6, 8, 8, 3), dtype=np.uint8)
        pairs = np.stack([np.arange(6) % k, (np.arange(6) + 1) % k], 1)
        arrays |= {"mistake_images": images, "mistakes": np.column_stack([np.arange(6), pairs])}
        arrays |= {"examples": pairs, "original_images": images, "adversarial_images": images ^ 1}
        arrays["perturbations"] = np.full((6, 2), 0.5, np.float32)
    trained = "after" in rules
    attacks = tuple(Attacks(y, z, 1, 2, 3, 4) for y, z in CostMatrix(table).top_pairs(3)) if pictures else ()
    history = (EpochLine(1, 0.5, 1e-3, 2.0, 0.9, 0.3, attacks), EpochLine(2, 0.25, 1e-3, 2.0, 0.91, 0.2, attacks))
    about = Environment("0.1.0", "abc", "3.11", {"torch": "2.6"}, "CPU", 1)
    facts = {"budget": 0.5, "refer": 0.0, "history": history * trained} | changes
    return Evidence(
        data=data,
        classes=tuple(classes),
        samples={"train": 1200, "validation": samples, "test": samples},
        architecture="cnn",
        method="csada" if trained else "none",
        options={"epochs": 2 * trained, "lr": 1e-3},
        rules=rules,
        chosen=chosen,
        environment=about,
        started="2026-01-01T00:00:00Z",
        arrays=arrays,
        **facts,
    )
