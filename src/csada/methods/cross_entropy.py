"""Cross-entropy: the baseline that every other method starts from, blind to costs."""

from __future__ import annotations

from dataclasses import dataclass

from csada.methods.base import Loss


@dataclass(frozen=True)
class CrossEntropy(Loss):
    static = True
