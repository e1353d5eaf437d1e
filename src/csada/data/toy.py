"""The three Gaussians of the paper's section 4: red above, green and blue side by side below.

`spread` multiplies the standard deviations. As printed (1), green and blue lie ten of them apart and a plain network
makes no critical error that could be avoided; 2 shows what the paper's figure shows.
"""

from __future__ import annotations

import numpy as np
import torch

from csada.data.splits import Part, Splits, scaled
from csada.errors import InputError
from csada.files import StrPath

CLASSES = ("red", "green", "blue")
MEANS = ((0.0, 8.0), (7.0, -6.0), (-7.0, -6.0))
COVARIANCE = ((2.0, 0.5), (0.5, 2.0))
PER_CLASS = (50, 500, 500)  # train, validation, test


def load(data_dir: StrPath | None = None, scale: float = 1.0, seed: int = 0, spread: float = 2.0) -> Splits:
    """50 training, 500 validation and 500 test points a class. Nothing is read from data_dir."""
    if not 0 < spread < np.inf:
        raise InputError(f"spread must be a positive number, got {spread}")
    generator = np.random.default_rng(seed)
    train, validation, test = (_draw(n, spread, generator) for n in PER_CLASS)
    return scaled(Splits(train, validation, test, CLASSES, "toy"), scale, seed)


def _draw(per_class: int, spread: float, generator: np.random.Generator) -> Part:
    # drawn around zero and moved: the same seed gives the same points, nearer or farther, at every spread
    around = generator.multivariate_normal((0, 0), COVARIANCE, (len(MEANS), per_class), method="cholesky")
    x = np.asarray(MEANS)[:, None] + spread * around
    return Part(torch.from_numpy(x.reshape(-1, 2)).float(), torch.arange(len(MEANS)).repeat_interleave(per_class))
