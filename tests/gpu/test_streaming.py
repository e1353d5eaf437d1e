"""Samples that stay in memory, streamed to the GPU, train as those that lie on it: captured or not."""

import copy

import numpy as np
import pytest
import torch

import csada
from csada.data.augment import Augmentation, Normalization
from csada.data.batches import batches
from csada.data.splits import Part
from csada.data.streamed import stream
from csada.models import cnn
from csada.training import Loop, Settings

COSTS = csada.CostMatrix.pareto(4, seed=0)
CUDA = torch.device("cuda")


@pytest.fixture
def part(tmp_path):
    """Thirty batches and a smaller one, mapped from a file."""
    draw, n = np.random.default_rng(0), 32 * 30 + 5
    draw.integers(0, 256, (n, 3, 16, 16), dtype=np.uint8).tofile(tmp_path / "pixels")
    pixels = np.memmap(tmp_path / "pixels", np.uint8, "c", shape=(n, 3, 16, 16))
    return Part(torch.from_numpy(pixels), torch.arange(n) % 4, Normalization(scale=255.0), Augmentation(2, True))


def both(part, monkeypatch):
    for bound in (2**33, 1000):
        monkeypatch.setenv("CSADA_BOUNDS", f"device={bound}")
        source = batches(part, 32, CUDA)
        assert source.streamed == (bound == 1000) and source.part.x.is_cuda != source.streamed
        yield source


def test_every_batch_has_the_same_bits_while_the_gpu_is_behind(part, monkeypatch):
    """A slot that was filled too early would show."""
    big, found = torch.randn(4096, 4096, device=CUDA), []
    for source in both(part, monkeypatch):
        generator, kept = torch.Generator(CUDA).manual_seed(0), []
        for _ in range(2):
            for batch in source.epoch(generator):
                torch.mm(big, big)  # milliseconds, which the host does not wait for
                kept.append((batch.x.sum((1, 2, 3)), batch.x.double().square().mean((1, 2, 3)), batch.y))
        found.append([torch.cat(values) for values in zip(*kept, strict=True)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_streamed_raw_is_what_lies_in_memory():
    rows = torch.arange(64 * 1000).reshape(64, 1000)
    big, indices = torch.randn(4096, 4096, device=CUDA), torch.randperm(64).split(5)
    found = []
    for x in stream(rows, indices, CUDA):
        torch.mm(big, big)
        found.append(x.clone())
    assert torch.equal(torch.cat(found).cpu(), rows[torch.cat(indices)])


@pytest.fixture
def deterministic(monkeypatch):
    """Two runs on the same data would differ otherwise: kernels add in any order, and training multiplies that."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation")  # the sums that tasks are drawn by
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("method", ["cross_entropy", "csada"])
def test_training_is_that_of_resident_data(part, method, graph, monkeypatch, deterministic):
    ended, model = [], cnn(3, 16, 4)
    for source in both(part, monkeypatch):
        settings = Settings(lr=1e-3, batch_size=32, graph=graph)
        loop = Loop(copy.deepcopy(model).to(CUDA), csada.METHODS[method](COSTS), settings, CUDA)
        generator = torch.Generator(CUDA)
        losses = [loop.epoch(epoch, source, generator.manual_seed(epoch)) for epoch in range(2)]
        assert bool(loop.graphs and loop.graphs.captured) == graph
        ended.append((losses, torch.cat([p.detach().flatten() for p in loop.model.parameters()])))
    (losses, weights), (expected, others) = ended
    assert losses == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(weights, others, rtol=1e-4, atol=1e-6)


def test_fit_and_predict_with_little_room(part, monkeypatch):
    model, scores = cnn(3, 16, 4).to(CUDA), []
    for _ in both(part, monkeypatch):
        fitted = csada.fit(model, part, "cross_entropy", COSTS, epochs=1, batch_size=32)
        assert np.isfinite(fitted.history[-1]["loss"])
        scores.append(csada.predict_logits(model, part).logits)
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)
