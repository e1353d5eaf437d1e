"""The step as a CUDA graph gives what the eager step gives, and where it cannot be captured the run goes on without."""

import copy
import logging
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import csada
from csada.data.batches import batches
from csada.data.splits import Part
from csada.methods.csada import CSADA, ESTIMATORS, attack_view
from csada.models import cnn, resnet
from csada.models.modes import training_mode
from csada.models.residual import ResNet
from csada.training import Loop, Settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

COSTS = csada.CostMatrix([[0, 4.0, 1.0, 0], [2.0, 0, 0, 1.0], [0, 3.0, 0, 5.0], [0, 0, 0, 0]])


@pytest.fixture(autouse=True)
def full_precision():
    """Differences are then those of the order of sums, not of shortened numbers."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def images(n=200):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(4, (n,), generator=g)
    return torch.randn(n, 3, 16, 16, generator=g) + y[:, None, None, None] / 2, y


def run(method, model, *, epochs=2, device="cuda", freeze_norm=True, **options):
    """The loop after training, and the loss of every epoch."""
    device = torch.device(device)
    settings = Settings(**{"lr": 1e-3, "batch_size": 32, **options})
    loop = Loop(copy.deepcopy(model).to(device), method, settings, device)
    source, generator = batches(Part(*images()), 32, device), torch.Generator(device)
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


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_captured_run_is_the_eager_run(estimator):
    """Batches have classes of more than 8, 12 and 16 samples, and a last batch of another size."""
    method = CSADA(COSTS, estimator=estimator, weight=2.0, tasks=8, step_size=0.05, steps=4)
    model = resnet(9, 4)
    captured, losses = run(method, model)
    eager, expected = run(method, model, graph=False)
    assert bool(captured.graphs.captured) == (estimator != "full") and eager.graphs is None
    assert losses == pytest.approx(expected, rel=1e-4)
    assert distance(captured, eager) < 1e-4


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


def test_after_a_failed_capture_the_run_goes_on_eagerly(caplog):
    model = cnn(3, 16, 4, dropout=0.5)
    with caplog.at_level(logging.WARNING, "csada"):
        failed, losses = run(Odd(COSTS, waits=True), model)
    assert "the step runs eagerly" in caplog.text and not failed.graphs.captured
    assert losses == pytest.approx(run(Odd(COSTS), model, graph=False)[1], rel=1e-4)
    again, losses = run(Odd(COSTS), model)  # and another run is captured as ever
    assert again.graphs.captured
    assert losses == pytest.approx(run(Odd(COSTS), model, graph=False)[1], rel=1e-4)


class Counting(nn.Sequential):
    """A model with a state of Python's own."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 100)


def test_what_does_not_say_it_is_static_is_not_captured():
    for method, model in ((Odd(COSTS, static=False), cnn(3, 16, 4)), (Odd(COSTS), Counting(*cnn(3, 16, 4)))):
        loop, losses = run(method, model)
        assert len(method.calls) == 2 * 7 and not loop.graphs.captured
        assert losses == pytest.approx(run(Odd(COSTS), model, graph=False)[1], rel=1e-4)


@pytest.mark.parametrize("asked", [True, False])
def test_a_wish_for_deterministic_kernels_is_kept(asked):
    cudnn, method = torch.backends.cudnn, Odd(COSTS)
    before = cudnn.deterministic
    cudnn.deterministic = asked
    try:
        run(method, cnn(3, 16, 4))
        assert cudnn.deterministic == asked
    finally:
        cudnn.deterministic = before
    captured = method.calls[:4]
    assert captured == [(asked, not asked)] * 4


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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_current_device_is_the_models():
    method = CSADA(COSTS, estimator="paper", step_size=0.05, steps=2)
    loop, losses = run(method, resnet(9, 4), device="cuda:1")
    assert loop.graphs.captured and torch.cuda.current_device() == 0
    assert losses == pytest.approx(run(method, resnet(9, 4), device="cuda:1", graph=False)[1], rel=1e-4)


class Reversed(ResNet):
    def forward(self, x):
        return super().forward(x).flip(1)


def own_class(model):
    model.__class__ = Reversed


def own_forward(model):
    model.forward = lambda x: ResNet.forward(model, x).flip(1)


def hooked(model):
    model.layer2[0].conv1.register_forward_hook(lambda _module, _inputs, output: output * 2)


def another_head(model):
    model.fc = nn.Sequential(nn.Linear(512, 8), nn.Tanh(), nn.Linear(8, 4))


def head_without_bias(model):
    model.fc = nn.Linear(512, 4, bias=False)


def stem_with_bias(model):
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1)
    nn.init.uniform_(model.conv1.bias, -1, 1)


def another_norm(model):
    model.layer1[0].bn1 = nn.GroupNorm(4, 64)


@pytest.mark.parametrize(
    "change",
    [lambda _: None, own_class, own_forward, hooked, another_head, head_without_bias, stem_with_bias, another_norm],
)
def test_the_attack_sees_the_model_as_it_was_changed(change):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = resnet(9, 4)
        change(model)
    model = model.cuda().eval()
    x = images(16)[0].cuda()
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cuda", torch.bfloat16):
            logits = attack_view(model, x)(x).float(), model(x).float()
    assert (expected.std(0) > 0).all()
    for got in logits:
        assert float((got - expected).norm() / expected.norm()) < 0.03
