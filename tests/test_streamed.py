"""Data that does not fit on the device gives the batches, the draws and the weights of data that does."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import csada
from csada.data.augment import Augmentation, Normalization
from csada.data.batches import batches, shares
from csada.data.splits import Part
from csada.data.streamed import AHEAD, stream
from csada.models import cnn
from csada.training import Loop, Settings

COSTS = csada.CostMatrix.pareto(4, seed=0)
CPU = torch.device("cpu")


@pytest.fixture(params=["in memory", "mapped"])
def part(request, tmp_path):
    """More batches than are in preparation at a time, the last one smaller."""
    n = 16 * (2 * AHEAD + 1) + 5
    pixels = np.random.default_rng(0).integers(0, 256, (n, 3, 8, 8), dtype=np.uint8)
    if request.param == "mapped":
        pixels.tofile(tmp_path / "pixels")
        pixels = np.memmap(tmp_path / "pixels", np.uint8, "c", shape=pixels.shape)
    change = Augmentation(padding=1, flip=True, zoom=(0.8, 1.0), right_angles=True)
    costs = torch.rand(n, 4, generator=torch.Generator().manual_seed(1))
    return Part(torch.from_numpy(pixels), torch.arange(n) % 4, Normalization(scale=255.0), change, costs)


def both(part, size=16):
    source = batches(part, size, CPU, dtype=torch.float32)
    return source, replace(source, streamed=True)


def threads():
    return [each for each in threading.enumerate() if each.name.startswith("csada-stream")]


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("size", [16, 1000])
def test_streamed_batches_are_the_resident_ones(part, shuffled, size):
    """Also where whoever takes them draws from the same generator in between."""
    drawn = []
    for source in both(part, size):
        generator = torch.Generator().manual_seed(3) if shuffled else None
        found = [
            (*batch, torch.rand(2, generator=generator) if shuffled else batch.y) for batch in source.epoch(generator)
        ]
        drawn.append([torch.cat(values) for values in zip(*found, strict=True)])
    for resident, streamed in zip(*drawn, strict=True):
        assert torch.equal(resident, streamed)
    assert not threads()


@pytest.mark.parametrize("size", [16, 1])  # of one sample: the first of two processes has none
@pytest.mark.parametrize("rank", [0, 1])
def test_processes_get_the_same_shares_of_the_same_batches(part, size, rank):
    drawn = []
    for source in both(part, size):
        generators = (torch.Generator().manual_seed(seed) for seed in (3, 4))
        drawn.append([(*s.batch, s.labels, torch.tensor(s.first)) for s in shares(source, *generators, rank, 2)])
    assert len(drawn[0]) == len(both(part, size)[0])
    for resident, streamed in zip(*drawn, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(resident, streamed, strict=True))


@pytest.mark.parametrize("method", ["cross_entropy", "csada"])
def test_training_ends_with_the_same_bits(part, method):
    ended = []
    for source in both(replace(part, costs=None)):
        torch.manual_seed(0)
        loop = Loop(cnn(3, 8, 4), csada.METHODS[method](COSTS), Settings(lr=0.05), CPU)
        generator = torch.Generator()
        losses = [loop.epoch(epoch, source, generator.manual_seed(epoch)) for epoch in range(2)]
        ended.append((losses, torch.cat([p.detach().flatten() for p in loop.model.parameters()])))
    assert ended[0][0] == ended[1][0] and torch.equal(ended[0][1], ended[1][1])


def test_in_order_without_gradients(part):
    resident, streamed = both(part)
    with torch.inference_mode():
        for a, b in zip(resident.epoch(), streamed.epoch(), strict=True):
            assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


def test_whoever_leaves_early_leaves_no_thread(part):
    source = both(part)[1]
    with pytest.raises(KeyboardInterrupt):
        for _ in source.epoch(torch.Generator()):
            assert threads()
            raise KeyboardInterrupt
    next(iter(source.epoch()))
    assert not threads()


def test_an_error_while_gathering_reaches_whoever_asks():
    indices = [torch.tensor([0, 1]), torch.tensor([2, 7])]
    found = stream(torch.zeros(3, 2), indices, CPU)
    next(found)
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        next(found)
    assert not threads()


def test_the_bound_is_the_users(monkeypatch):
    part = Part(torch.zeros(4, 8), torch.zeros(4, dtype=torch.long))  # 128 bytes
    monkeypatch.setenv("CSADA_BOUNDS", "device=127")
    assert batches(part, 2, "meta").streamed and batches(part, 2, "meta").part.x.device == CPU
    monkeypatch.setenv("CSADA_BOUNDS", "device=128")
    assert not batches(part, 2, "meta").streamed and batches(part, 2, "meta").part.x.is_meta
    monkeypatch.setenv("CSADA_BOUNDS", "device=0")
    assert not batches(part, 2, "cpu").streamed
