"""A ResNet with frozen batch norms, folded: what it gives, and where it must not be used. Batch norm that learns, fused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from csada.methods.csada import attack_view
from csada.models import fused, resnet
from csada.models.folded import folded_forward
from csada.models.fused import norm_relu
from csada.models.residual import ResNet


def images(n=16, size=16):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0)).cuda()


def lived_in(model):
    """Statistics and weights of batch norm as training leaves them."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            ranges = (module.running_mean, -0.5, 0.5), (module.running_var, 0.5, 2), (module.bias, -0.3, 0.3)
            for tensor, low, high in ranges:
                tensor.data.uniform_(low, high, generator=generator)
    return model.cuda().eval()


def apart(a, b):
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())


def gradients(model, forward, x):
    """Logits, and the gradients of the samples and of some parameters."""
    points = x.clone().requires_grad_()
    logits = forward(points).float()
    wanted = [points, model.conv1.weight, model.layer2[0].bn1.weight, model.layer3[0].bn2.bias, model.fc.weight]
    loss = F.cross_entropy(logits, torch.arange(len(x)).cuda() % 4, reduction="sum")
    return logits, *torch.autograd.grad(loss, wanted)


SHAPES = pytest.mark.parametrize(("depth", "stem", "size"), [(9, "small", 16), (34, "small", 32), (9, "imagenet", 64)])


@SHAPES
def test_folded_is_the_plain_forward_and_so_are_its_gradients(depth, stem, size):
    model, x = lived_in(resnet(depth, 4, stem=stem)), images(size=size)
    plain, folded = (gradients(model, f, x) for f in (model, folded_forward(model, torch.float32)))
    assert max(map(apart, folded, plain)) < 5e-3


@SHAPES
def test_folded_in_half_precision_is_about_as_far_off_as_the_layers_are(depth, stem, size, monkeypatch):
    """From the gradients in single precision; those of the samples went through all layers."""
    model, x = lived_in(resnet(depth, 4, stem=stem)), images(size=size)
    exact, folded = gradients(model, model, x), gradients(model, folded_forward(model, torch.bfloat16), x)
    monkeypatch.setattr("csada.models.residual.foldable", lambda _: False)
    with torch.autocast("cuda", torch.bfloat16):
        layers = gradients(model, model, x)
    for ours, theirs, value in zip(folded, layers, exact, strict=True):
        assert apart(ours, value) < max(2 * apart(theirs, value), 0.01)


def test_under_autocast_a_frozen_network_uses_it_and_one_that_learns_does_not(monkeypatch):
    model, x, calls = resnet(9, 4).cuda(), images(), []
    monkeypatch.setattr("csada.models.residual.folded_forward", lambda *of: calls.append(1) or folded_forward(*of))
    for mode in (True, False):
        with torch.autocast("cuda", torch.bfloat16):
            model.train(mode)(x)
        assert len(calls) == (not mode)


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


def another_eps(model):
    model.layer1[0].bn1.eps = 0.5


def another_norm(model):
    model.layer1[0].bn1 = nn.GroupNorm(4, 64)


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        own_class,
        own_forward,
        hooked,
        another_head,
        head_without_bias,
        stem_with_bias,
        another_eps,
        another_norm,
    ],
)
def test_the_attack_sees_the_model_as_it_was_changed(change):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = resnet(9, 4)
        change(model)
    model = model.cuda().eval()
    x = images()
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cuda", torch.bfloat16):
            logits = attack_view(model, x)(x).float(), model(x).float()
    assert (expected.std(0) > 0).all()
    for got in logits:
        assert float((got - expected).norm() / expected.norm()) < 0.03


def norm_and_data(channels=64, side=8, n=8, offset=5.0):
    generator = torch.Generator().manual_seed(2)

    def made():
        values = torch.randn(n, channels, side, side, generator=generator).cuda()
        return values.to(torch.bfloat16, memory_format=torch.channels_last)

    norm = nn.BatchNorm2d(channels)
    norm.weight.data.uniform_(0.5, 2, generator=generator)
    norm.bias.data.uniform_(-1, 1, generator=generator)
    return norm.cuda(), made() * 3 + offset, made(), made()


@pytest.mark.parametrize("with_way", [True, False])
@pytest.mark.parametrize(("channels", "side", "n"), [(64, 32, 64), (128, 16, 33), (512, 4, 7), (16, 5, 3)])
def test_fused_batch_norm_gives_what_the_layers_give_in_double(channels, side, n, with_way):
    norm, x, way, gradient = norm_and_data(channels, side, n)
    reference = copy.deepcopy(norm).double()
    assert fused.available(x.device) and fused.fits(norm, x)
    found = []
    for layer, dtype in ((norm, torch.bfloat16), (reference, torch.float64)):
        inputs = [x.to(dtype).requires_grad_(), way.to(dtype).requires_grad_()][: 1 + with_way]
        out = norm_relu(layer, *inputs)
        gradients = torch.autograd.grad(out, [*inputs, layer.weight, layer.bias], gradient.to(dtype))
        found.append((out, *gradients, layer.running_mean, layer.running_var))
        assert int(layer.num_batches_tracked) == 1
    assert max(apart(ours, exact) for ours, exact in zip(*found, strict=True)) < 0.01


def test_where_triton_works_is_found_out_also_where_nothing_is_differentiated():
    fused.available.cache_clear()
    with torch.inference_mode():
        assert fused.available(torch.device("cuda:0"))


def test_fused_batch_norm_repeats_to_the_bit():
    norm, x, way, gradient = norm_and_data(64, 32, 64)
    found = []
    for _ in range(2):
        points = x.clone().requires_grad_()
        out = norm_relu(copy.deepcopy(norm), points, way)
        found.append((out, *torch.autograd.grad(out, points, gradient)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


OTHERS = ("hooked", "frozen", "cumulative", "group", "single", "rows first", "odd width")


@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_norm_is_called_as_it_is(kind):
    norm, x, _, _ = norm_and_data(48 if kind == "odd width" else 64)
    if kind == "hooked":
        norm.register_forward_hook(lambda _module, _inputs, output: output + 1)
    elif kind == "frozen":
        norm.eval()
    elif kind == "cumulative":
        norm.momentum = None
    elif kind == "group":
        norm = nn.GroupNorm(4, 64).cuda().bfloat16()
    elif kind == "single":
        x = x.float()
    elif kind == "rows first":
        x = x.contiguous()
    assert not fused.fits(norm, x)
    twin = copy.deepcopy(norm)
    assert torch.equal(norm_relu(norm, x), F.relu(twin(x)))
