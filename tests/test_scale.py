"""The page on costs at scale: its tables are what the script makes of the records, and it counts work as PyTorch does."""

import importlib
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from csada.models import resnet

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("scale")


def test_the_tables_on_the_page_are_what_the_script_prints(scale):
    page = (ROOT / "docs" / "scale.md").read_text()
    assert scale.page(page) == page
    assert all(section in page for section in scale.sections().values()) and page.count("| --- |") == 4


def test_the_work_of_a_network_is_what_pytorch_counts(scale):
    network = resnet(34, 10).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == scale.SMALL
    transformer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    with FlopCounterMode(display=False) as counter:  # with gradients, PyTorch takes no path of its own
        transformer(torch.zeros(1, 197, 768))
    layer = (scale.transformer(224, 16, 768, 3, 0) - scale.transformer(224, 16, 768, 2, 0)) / counter.get_total_flops()
    assert layer == pytest.approx(1, abs=0.05)


def test_published_counts_of_the_large_networks(scale):
    assert scale.CASES[0].flops / 2e9 == pytest.approx(4.09, abs=0.01)  # torchvision's page says so
    assert scale.CASES[1].flops / 2e9 == pytest.approx(17.56, abs=0.01)
