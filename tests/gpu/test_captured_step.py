"""The step as a CUDA graph gives what the eager step gives, and where it cannot be captured the run goes on without."""

import copy
import itertools
import logging
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import csada
from csada.data.batches import batches
from csada.data.splits import Part
from csada.methods.csada import CSADA, ESTIMATORS
from csada.models import cnn, resnet
from csada.models.modes import training_mode
from csada.training import Loop, Settings

COSTS = csada.CostMatrix([[0, 4.0, 1.0, 0], [2.0, 0, 0, 1.0], [0, 3.0, 0, 5.0], [0, 0, 0, 0]])


def images(n=200):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(4, (n,), generator=g)
    return torch.randn(n, 3, 16, 16, generator=g) + y[:, None, None, None] / 2, y


def run(method, model, *, epochs=2, device="cuda", freeze_norm=True, **options):
    """The loop after training, and the loss of every epoch."""
    device = torch.device(device)
    settings, generator = Settings(**{"lr": 1e-3, "batch_size": 32, **options}), torch.Generator(device)
    model, data = method.prepare(
        copy.deepcopy(model).to(device), Part(*images()), train=lambda net, _: net, generator=generator.manual_seed(0)
    )
    loop = Loop(model.to(device), method, settings, device)
    source = batches(data, 32, device)
    losses = []
    for epoch in range(epochs):
        torch.cuda.manual_seed(epoch)
        training_mode(loop.model, freeze_norm=freeze_norm)
        losses.append(loop.epoch(epoch, source, generator.manual_seed(epoch)))
    return loop, losses


def distance(a, b):
    """The largest difference of two trained models' parameters."""
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


# what kernels of another order of sums may change: in half precision the weights move by up to 14 steps of lr 1e-3
CLOSE = {"32": (1e-4, 1e-4), "bf16": (2e-2, 1e-3)}


@pytest.mark.parametrize("precision", CLOSE)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_captured_run_is_the_eager_run(estimator, precision):
    """Batches have classes of more than 8, 12 and 16 samples, and a last batch of another size."""
    method = CSADA(COSTS, estimator=estimator, weight=2.0, tasks=8, step_size=0.05, steps=4)
    model = resnet(9, 4)
    captured, losses = run(method, model, precision=precision)
    eager, expected = run(method, model, precision=precision, graph=False)
    assert bool(captured.graphs.captured) == (estimator != "full") and eager.graphs is None
    near, far = CLOSE[precision]
    assert losses == pytest.approx(expected, rel=near)
    assert distance(captured, eager) < far


@pytest.mark.parametrize("name", [name for name in csada.METHODS if name != "csada"])
def test_every_method_is_captured_and_gives_what_it_gives_eagerly(name):
    method, model = csada.METHODS[name](COSTS), cnn(3, 16, 4)
    captured, losses = run(method, model)
    eager, expected = run(method, model, graph=False)
    assert captured.graphs.captured and losses == pytest.approx(expected, rel=1e-4)
    assert distance(captured, eager) < 1e-4


@pytest.mark.parametrize("precision", CLOSE)
def test_cross_entropy_with_a_batch_norm_that_learns(precision):
    method, model = csada.METHODS["cross_entropy"](COSTS), resnet(9, 4)
    captured, losses = run(method, model, freeze_norm=False, precision=precision)
    assert captured.graphs.captured and losses[1] < losses[0]
    expected = run(method, model, freeze_norm=False, precision=precision, graph=False)[1]
    assert losses == pytest.approx(expected, rel={"32": 2e-3, "bf16": 3e-2}[precision])  # it makes more of rounding


def test_rehearsals_leave_no_trace():
    """Batch norm has counted every batch once, the last one of another size too."""
    loop, _ = run(csada.METHODS["cross_entropy"](COSTS), resnet(9, 4), freeze_norm=False, epochs=1)
    counts = {int(m.num_batches_tracked) for m in loop.model.modules() if isinstance(m, nn.BatchNorm2d)}
    assert loop.graphs.captured and counts == {7}


def test_pairs_are_not_padded_where_batch_norm_would_see_it():
    method = CSADA(COSTS, estimator="paper", step_size=0.05, steps=2)
    captured, losses = run(method, resnet(9, 4), freeze_norm=False)
    assert not captured.graphs.captured
    # batch norm in training mode makes more of rounding: two eager runs were seen 3e-4 apart
    assert losses == pytest.approx(run(method, resnet(9, 4), freeze_norm=False, graph=False)[1], rel=2e-3)


def test_dropout_is_drawn_anew_in_every_step_as_without_a_graph():
    method, model = csada.METHODS["cross_entropy"](COSTS), cnn(3, 16, 4, dropout=0.5)
    captured, losses = run(method, model)
    assert captured.graphs.captured and losses == pytest.approx(run(method, model, graph=False)[1], rel=1e-4)


@dataclass(frozen=True)
class Odd:
    """Cross-entropy that counts its calls, and at will waits for the device."""

    costs: csada.CostMatrix
    static: bool = True
    waits: bool = False
    calls: list = field(default_factory=list)

    def prepare(self, model, data, **_):
        return model, data

    def __call__(self, model, x, y, *, costs=None, generator=None):
        cudnn = torch.backends.cudnn
        self.calls.append((cudnn.deterministic, cudnn.benchmark))
        noise = torch.rand(len(y), device=y.device, generator=generator)
        loss = (F.cross_entropy(model(x), y, reduction="none") * noise).mean()
        return loss * (1 + 0 * loss.item()) if self.waits else loss


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_after_a_failed_capture_the_run_goes_on_eagerly(caplog, precision):
    model = cnn(3, 16, 4, dropout=0.5)
    with caplog.at_level(logging.WARNING, "csada"):
        failed, losses = run(Odd(COSTS, waits=True), model, precision=precision)
    assert "the step runs eagerly" in caplog.text and not failed.graphs.captured
    expected, near = run(Odd(COSTS), model, graph=False, precision=precision)[1], CLOSE[precision][0]
    assert losses == pytest.approx(expected, rel=near)
    again, losses = run(Odd(COSTS), model, precision=precision)  # and another run is captured as ever
    assert again.graphs.captured and losses == pytest.approx(expected, rel=near)


def test_through_fit_a_failed_capture_changes_nothing_but_the_time(caplog):
    model, data = cnn(3, 16, 4, dropout=0.5).cuda(), images()
    with caplog.at_level(logging.WARNING, "csada"):
        failed = csada.fit(model, data, Odd(COSTS, waits=True), epochs=2, lr=1e-3, batch_size=32)
    assert "the step runs eagerly" in caplog.text
    plain = csada.fit(model, data, Odd(COSTS), epochs=2, lr=1e-3, batch_size=32, graph=False)
    assert [line["loss"] for line in failed.history] == pytest.approx(
        [line["loss"] for line in plain.history], rel=1e-4
    )


class Counting(nn.Sequential):
    """A model with a state of Python's own."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 100)


@pytest.mark.parametrize("whose", ["method", "model"])
def test_what_does_not_say_it_is_static_is_not_captured(whose):
    method = Odd(COSTS, static=whose != "method")
    model = Counting(*cnn(3, 16, 4)) if whose == "model" else cnn(3, 16, 4)
    loop, losses = run(method, model)
    assert len(method.calls) == 2 * 7 and not loop.graphs.captured
    assert losses == pytest.approx(run(Odd(COSTS), model, graph=False)[1], rel=1e-4)


class Vouched(nn.Module):
    """A user's own network."""

    def __init__(self):
        super().__init__()
        self.net = cnn(3, 16, 4)

    def forward(self, x):
        return self.net(x)


def test_what_says_that_it_is_static_is_captured():
    model = Vouched()
    assert not run(Odd(COSTS), model)[0].graphs.captured
    model.static = True
    loop, losses = run(Odd(COSTS), model)
    assert loop.graphs.captured and losses == pytest.approx(run(Odd(COSTS), model, graph=False)[1], rel=1e-4)


@pytest.mark.parametrize(("same", "searched"), [(True, False), (False, True), (False, False)])
def test_how_cudnn_chooses_its_kernels_is_left_to_the_caller(same, searched):
    cudnn, method = torch.backends.cudnn, Odd(COSTS)
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = same, searched
    try:
        loop, _ = run(method, cnn(3, 16, 4))
        assert (cudnn.deterministic, cudnn.benchmark) == (same, searched)
    finally:
        cudnn.deterministic, cudnn.benchmark = before
    assert loop.graphs.captured and set(method.calls) == {(same, searched)}


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.05), ("adam", 1e-3)])
def test_a_run_begun_on_the_cpu_follows_its_schedule_on_the_gpu(tmp_path, optimizer, lr):
    """Captured as well as not."""
    data, model, losses = images(64), cnn(3, 16, 4), []
    for graph in (True, False):
        options = {"epochs": 4, "batch_size": 16, "schedule": "one_cycle", "optimizer": optimizer, "lr": lr}
        options |= {"graph": graph, "checkpoint": tmp_path / f"checkpoint-{graph}"}

        def stop(line, _):
            if line["epoch"] == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            csada.fit(model, data, "cross_entropy", on_epoch=stop, **options)
        resumed = csada.fit(copy.deepcopy(model).cuda(), data, "cross_entropy", **options)
        losses.append([line["loss"] for line in resumed.history])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == 4


def test_a_rate_from_a_checkpoint_of_the_cpu_stays_a_tensor_that_a_graph_reads(tmp_path):
    """The last step's rate is that of the schedule, not the one that was captured."""
    data, model, path = images(64), cnn(3, 16, 4), tmp_path / "checkpoint"
    options = {"epochs": 4, "batch_size": 16, "schedule": "step:1:0.1", "lr": 0.1, "momentum": 0.0, "checkpoint": path}

    def stop(line, _):
        if line["epoch"] == 2:  # the first is kept
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        csada.fit(model, data, "cross_entropy", on_epoch=stop, **options)
    moved = []

    def told(line, net):
        moved.append(torch.cat([p.detach().flatten() for p in net.parameters()]).clone())

    csada.fit(copy.deepcopy(model).cuda(), data, "cross_entropy", on_epoch=told, **options)
    assert len(moved) == 3
    first, second = (float((b - a).norm()) for a, b in itertools.pairwise(moved))
    assert 0.02 < second / first < 0.3  # a tenth of the rate, with other gradients


def test_a_device_without_a_number_is_the_current_one():
    method = CSADA(COSTS, estimator="paper", step_size=0.05, steps=2)
    runs = [run(method, resnet(9, 4), device=name) for name in ("cuda", "cuda:0")]
    assert all(loop.graphs.captured for loop, _ in runs) and torch.cuda.current_device() == 0
    assert runs[0][1] == pytest.approx(runs[1][1], rel=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_current_device_is_the_models():
    method = CSADA(COSTS, estimator="paper", step_size=0.05, steps=2)
    loop, losses = run(method, resnet(9, 4), device="cuda:1")
    assert loop.graphs.captured and torch.cuda.current_device() == 0
    assert losses == pytest.approx(run(method, resnet(9, 4), device="cuda:1", graph=False)[1], rel=1e-4)
