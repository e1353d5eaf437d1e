"""Bytes on a CPU are shifted by copying, all else by a gather: the same images, from the same draws."""

import pytest
import torch

from csada.data.augment import Normalization, shift_and_flip


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("padding", [0, 2, 9])  # 9: some images are shifted out of sight
def test_copies_and_gathers_agree(padding, flip):
    pixels = torch.randint(0, 256, (200, 3, 6, 8), dtype=torch.uint8)
    before, draws = pixels.clone(), [torch.Generator().manual_seed(1) for _ in range(3)]
    copied, gathered, of_slices = (
        shift_and_flip(x, padding, flip, draw)
        for x, draw in zip((pixels, pixels.float(), pixels.mT.contiguous().mT), draws, strict=True)
    )
    assert copied.dtype == torch.uint8 and copied.is_contiguous()
    assert torch.equal(copied.float(), gathered) and torch.equal(copied, of_slices)
    assert torch.equal(draws[0].get_state(), draws[1].get_state())
    assert torch.equal(pixels, before)


def test_bytes_are_normalised_as_their_floats_are_and_stay_what_they_were():
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3, 3, 1)[:, :, :, None]
    before, normal = pixels.clone(), Normalization((0.1, 0.2, 0.3), (0.4, 0.5, 0.7), 255)
    floats = pixels.float()
    assert torch.equal(normal(pixels), normal(floats)) and not torch.equal(normal(floats), floats)
    assert torch.equal(pixels, before) and torch.equal(floats, before.float())
