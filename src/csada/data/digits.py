"""The 1,797 handwritten digits that come with scikit-learn: 8x8 pixels, 17 grey levels, no download."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from csada.data.augment import Normalization
from csada.data.splits import Part, Splits, scaled, stratified
from csada.files import StrPath

NORMALIZATION = Normalization(mean=(0.3053,), std=(0.3760,), scale=16)


def load(
    data_dir: StrPath | None = None, scale: float = 1.0, seed: int = 0, parts: tuple[float, float, float] = (60, 20, 20)
) -> Splits:
    """Split in proportion to `parts`, stratified by class. Nothing is read from data_dir."""
    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.uint8))[:, None]
    whole = Part(images, torch.from_numpy(digits.target.astype(np.int64)), NORMALIZATION)
    train, validation, test = (whole.take(index) for index in stratified(digits.target, parts, seed))
    return scaled(Splits(train, validation, test, tuple("0123456789"), "digits"), scale, seed)
