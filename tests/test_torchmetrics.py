"""The torchmetrics classes give the numbers of `metrics`, batch by batch and over processes."""

from __future__ import annotations

import gc

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from program import server

from csada import metrics
from csada.costs import CostMatrix
from csada.errors import InputError
from csada.torchmetrics import MeanCost, PairwiseErrorRate, TotalCost

matplotlib.use("Agg")

COSTS = CostMatrix(CostMatrix.pareto(3, seed=4).values, ["mug", "cup", "jar"])
EXPECTED = {
    TotalCost: lambda confusion: metrics.total_cost(confusion, COSTS),
    MeanCost: lambda confusion: metrics.mean_cost(confusion, COSTS),
    PairwiseErrorRate: metrics.pairwise_error_rates,
}


def batch(seed, n=50):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=generator), torch.randint(3, (n,), generator=generator)


def expected(kind, seeds):
    logits, labels = (torch.cat(parts) for parts in zip(*map(batch, seeds), strict=True))
    return EXPECTED[kind](metrics.confusion_counts(labels, logits.argmax(1), 3))


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("decided", [False, True])
def test_batches_add_up_to_the_number_of_the_whole(kind, decided):
    metric = kind(COSTS)
    for seed in range(3):
        logits, labels = batch(seed)
        metric.update(logits.argmax(1) if decided else logits, labels)
    np.testing.assert_allclose(metric.compute(), expected(kind, range(3)), rtol=1e-6)


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_reset_metric_starts_again_and_forward_gives_the_batch(kind):
    metric = kind(COSTS)
    metric.update(*batch(0))
    metric.reset()
    metric.update(*batch(1))
    np.testing.assert_allclose(metric(*batch(2)), expected(kind, [2]), rtol=1e-6)
    np.testing.assert_allclose(metric.compute(), expected(kind, [1, 2]), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
def test_small_integer_types_count_as_large_ones(dtype):
    """8 bits cannot number 20 x 20 cells, nor 16 bits 200 x 200."""
    for classes in (20, 120 if dtype == torch.int8 else 200):
        labels = torch.arange(classes).to(dtype)
        metric = MeanCost(CostMatrix.uniform(classes))
        metric.update(labels, labels)
        assert metric.compute() == 0 and metric.confusion.diagonal().tolist() == [1] * classes
        metric.update(labels, torch.arange(classes).flip(0).to(dtype))
        assert metric.compute() == 0.5


def test_a_class_without_samples_has_no_rate():
    metric = PairwiseErrorRate(COSTS)
    metric.update(torch.tensor([0, 2]), torch.tensor([0, 0]))
    rates = metric.compute()
    assert rates[0].tolist() == [0.5, 0, 0.5] and rates[1:].isnan().all()


@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        (torch.zeros(2, 4), torch.tensor([0, 1]), "scores 4 classes but the costs name 3"),
        (torch.tensor([0, 3]), torch.tensor([0, 1]), "label 3 is out of range"),
        (torch.tensor([0, 1]), torch.tensor([-1, 1]), "label -1 is out of range"),
        (torch.tensor([0, 1, 2]), torch.tensor([0, 1]), "2 truths but 3 predictions"),
        (torch.tensor([[0.0, torch.nan, 1.0]]), torch.tensor([0]), "for sample 0"),
    ],
)
def test_what_cannot_be_counted_is_refused(preds, target, message):
    with pytest.raises(InputError, match=message):
        TotalCost(COSTS).update(preds, target)


@pytest.mark.parametrize("kind", [TotalCost, MeanCost])
def test_a_cost_draws_itself(kind):
    metric = kind(COSTS)
    metric.update(*batch(0))
    figure, axes = metric.plot()
    figure.canvas.draw()
    assert axes.lines[0].get_ydata() == pytest.approx(expected(kind, [0]), rel=1e-6)
    plt.close(figure)


def test_the_pairs_are_a_heat_map_of_errors_with_names():
    metric = PairwiseErrorRate(COSTS)
    metric.update(torch.tensor([0, 2, 1, 1]), torch.tensor([0, 0, 1, 1]))
    figure, axes = metric.plot()
    figure.canvas.draw()
    shown = axes.images[0].get_array()
    assert shown[0, 2] == 50 and shown[1, 2] == 0
    assert shown.mask[0, 0] and shown.mask[2].all()  # neither correct predictions nor a class without samples
    assert [label.get_text() for label in axes.get_xticklabels()] == ["mug", "cup", "jar"]
    plt.close(figure)


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    kinds = [TotalCost(COSTS), MeanCost(COSTS), PairwiseErrorRate(COSTS)]
    for metric in kinds:
        for seed in [0, 1, 2] if rank == 0 else [3]:  # unequal shares: a mean of means would be wrong
            metric.update(*batch(seed))
    np.savez(f"{folder}/{rank}.npz", **{type(metric).__name__: metric.compute().numpy() for metric in kinds})
    del kinds, metric
    gc.collect()  # what still refers to the group may abort the process at its exit
    dist.destroy_process_group()


def test_two_processes_find_the_number_of_all_samples(tmp_path):
    start = server().get_start_method()
    mp.start_processes(worker, (str(tmp_path),), nprocs=2, start_method=start)
    for rank in range(2):
        found = np.load(tmp_path / f"{rank}.npz")
        for kind in EXPECTED:
            np.testing.assert_allclose(found[kind.__name__], expected(kind, range(4)), rtol=1e-6)
