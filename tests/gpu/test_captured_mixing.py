"""Mixup and distillation draw, mix and ask their teacher inside the captured step, as they do without a graph."""

import pytest
import torch
from test_captured_step import COSTS, distance, run

import csada
from csada.methods.distillation import Distillation, Teacher
from csada.methods.mixup import Mixup
from csada.models import cnn, resnet
from csada.models.members import Member, as_network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS = {
    "mixup": lambda: Mixup(COSTS, alpha=0.5),
    "aimed": lambda: Mixup(COSTS, partners="cost", confusion=[[0.7, 0.1, 0.1, 0.1]] * 4),
    "distillation": lambda: Distillation(
        COSTS,
        Teacher(
            as_network([Member(resnet(9, 4, seed=1)), Member(cnn(3, 16, 4, dropout=0.5))], ("identity", "mirror"))
        ).cuda(),
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_captured_run_is_the_eager_run(name):
    method, model = METHODS[name](), resnet(9, 4)
    captured, losses = run(method, model)
    eager, expected = run(method, model, graph=False)
    assert captured.graphs.captured and eager.graphs is None
    assert losses == pytest.approx(expected, rel=1e-4)
    assert distance(captured, eager) < 1e-4


def test_a_restart_with_learning_batch_norm_in_bf16_is_captured():
    method = csada.METHODS["mixup"](COSTS)
    captured, losses = run(method, resnet(9, 4), freeze_norm=False, precision="bf16")
    assert captured.graphs.captured
    assert losses == pytest.approx(
        run(method, resnet(9, 4), freeze_norm=False, precision="bf16", graph=False)[1], rel=0.02
    )
