"""Networks of timm and torchvision on the GPU, from `train` to `fit` and `predict`, by command line."""

import json

import numpy as np
import pytest
from PIL import Image
from test_product import command

import csada


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three colours, 60 noisy squares each."""
    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for k, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir()
        for i in range(60):
            pixels = draw.integers(0, 150, (64, 64, 3), dtype=np.uint8)
            pixels[..., k] += 60
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.parametrize(
    "spec", ["timm:resnet10t", "timm:vit_tiny_patch16_224", "torchvision:resnet18", "torchvision:mobilenet_v3_small"]
)
@pytest.mark.filterwarnings("ignore:the true class scores no higher")  # five epochs need not teach a network anything
def test_a_network_of_a_library_goes_from_train_to_fit(spec, photos, tmp_path):
    pytest.importorskip(spec.partition(":")[0])
    size = 224 if "224" in spec else 64
    command("train", photos, "--model", spec, "--size", size, "--epochs", 5, "--out", tmp_path / "base")
    words = ("--costs", "uniform", "--members", "2", "--epochs", "1", "--json")
    told = json.loads(command("fit", tmp_path / "base", photos, *words, "--out", tmp_path / "fitted"))
    assert set(told["rows"]) >= {"before", "before + rule"}
    classifier = csada.Classifier.load(tmp_path / "fitted")
    assert classifier.members[0].architecture == spec
    rows = command("predict", tmp_path / "fitted", photos / "red", "--out", tmp_path / "rows.csv")
    assert "wrote" in rows and len((tmp_path / "rows.csv").read_text().splitlines()) == 61
