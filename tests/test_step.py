"""What may become a CUDA graph; the graphs themselves are tested where there is a GPU, in tests/gpu."""

import copy

import pytest
import torch
from torch import nn

import csada
from csada.models import cnn, mlp, resnet
from csada.models.residual import ResNet
from csada.training.checkpoints import read_checkpoint, write_checkpoint
from csada.training.step import is_static, says_static

COSTS = csada.CostMatrix.uniform(3)


class Changed(ResNet):
    def forward(self, x):
        return super().forward(x)


class Odd(nn.Module):
    def forward(self, x):
        return x


def hooked():
    model = mlp(4, 3)
    model[1].register_forward_hook(lambda *_: None)
    return model


def vouched_for():
    model = nn.Sequential(Odd(), mlp(4, 3))
    model.static = True
    return model


@pytest.mark.parametrize("name", csada.METHODS)
def test_every_method_with_its_models_may_be_captured(name):
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    method = csada.METHODS[name](COSTS)
    model, _ = method.prepare(mlp(4, 3), (x, y), train=lambda model, _: model, generator=torch.Generator())
    assert says_static(method) and is_static(model)


def test_a_subclass_of_a_method_must_say_so_itself():
    class Mine(csada.METHODS["cross_entropy"]):
        pass

    assert not says_static(Mine(COSTS))


@pytest.mark.parametrize(
    ("model", "static"),
    [
        (cnn(3, 16, 4, dropout=0.5, batch_norm=True), True),
        (resnet(9, 4), True),
        (nn.TransformerEncoderLayer(8, 2), True),
        (Changed((1, 1, 1, 1), 4, 3, "small"), False),
        (nn.Sequential(Odd(), mlp(4, 3)), False),
        (hooked(), False),
        (vouched_for(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_is_captured_only_if_all_of_it_is_known_to_be_static(model, static):
    assert is_static(model) == static


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_checkpoint_brings_no_other_device_s_way_of_working(tmp_path, optimizer):
    """A GPU's optimiser keeps its rate in a tensor and has fused kernels; a CPU's does not."""
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    options = {"epochs": 4, "lr": 0.05, "batch_size": 4, "schedule": "one_cycle", "optimizer": optimizer}

    def stop(line, _):
        if line["epoch"] == 3:
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        csada.fit(mlp(4, 3), (x, y), "cross_entropy", checkpoint=path, on_epoch=stop, **options)
    plain = copy.deepcopy(of_gpu := read_checkpoint(path))
    of_gpu.optimizer["param_groups"][0] |= {"lr": torch.tensor(7.0), "fused": True, "capturable": True}
    fitted = []
    for saved in (plain, of_gpu):
        write_checkpoint(path, saved)
        fitted.append(csada.fit(mlp(4, 3), (x, y), "cross_entropy", checkpoint=path, **options))
    assert fitted[0].history[-1]["loss"] == fitted[1].history[-1]["loss"]
