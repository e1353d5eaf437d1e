"""Recipes: plain values that say what the paper says."""

from __future__ import annotations

import re

import pytest

from csada.models.recipes import RECIPES


def test_the_papers_recipes_are_the_papers() -> None:
    (paper,) = RECIPES["paper"]
    assert (paper.epochs, paper.lr, paper.momentum, paper.weight_decay) == (300, 0.1, 0.9, 1e-4)
    assert (paper.optimizer, paper.schedule) == ("sgd", "step:50:0.33")
    stages = [(s.train_only, s.epochs, s.lr, s.optimizer, s.batch_size) for s in RECIPES["pmi-resnet34"]]
    assert stages == [("head", 10, 1e-4, "adam", 32), ("all", 10, 1e-5, "adam", 32), ("all", 10, 1e-6, "adam", 32)]
    (shallow,) = RECIPES["pmi-resnet9"]
    assert (shallow.epochs, shallow.lr, shallow.optimizer, shallow.schedule) == (300, 0.1, "adam", "step:50:0.33")


@pytest.mark.parametrize("name", RECIPES)
def test_every_stage_can_be_run(name: str) -> None:
    for stage in RECIPES[name]:
        assert stage.epochs > 0
        assert stage.lr > 0
        assert stage.batch_size > 0
        assert stage.optimizer in ("sgd", "adam")
        assert stage.train_only in ("all", "head")
        assert re.fullmatch(r"constant|one_cycle|step:\d+:0\.\d+", stage.schedule)
        assert stage.optimizer == "sgd" or not (stage.momentum or stage.nesterov)  # Adam has its own
        assert stage.momentum > 0 or not stage.nesterov  # PyTorch refuses Nesterov without momentum
