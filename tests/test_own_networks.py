"""Networks of others by name: timm, torchvision and factories of your own, from the first command on."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import inside, refused
from test_examples import RUN

from csada import Classifier, models

FACTORY = """
from torch import nn

def build(classes, channels, width=8):
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, classes))

def wrong(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, classes))
"""


@pytest.fixture
def factory(tmp_path, monkeypatch):
    (tmp_path / "team_networks.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("team_networks", None)


def test_a_factory_goes_from_train_to_fit_and_predict_and_runs_only_when_trusted(factory, capfd):
    base, fitted = factory / "base", factory / "fitted"
    own = ("digits", "--model", "team_networks:build", "--epochs", "4", "--out", base)
    assert "names code to run" in refused("train", *own)
    assert "team_networks" not in sys.modules
    run = inside("train", *own, "--trust", "--json")
    assert run.returncode == 0, run.stderr
    costs = ("digits", "--costs", "pareto:0", "--members", "2", "--epochs", "1", "--out", fitted)
    assert "names code to run" in refused("fit", base, *costs)
    run = inside("fit", base, *costs, "--trust", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["rows"]["before"]["test"]["accuracy"] > 0.7
    classifier = Classifier.load(fitted, trust=True)
    assert {member.architecture for member in classifier.members} == {"team_networks:build"}
    assert classifier.members[0].arguments == {"channels": 1}
    again = inside("train", *own, "--trust")
    assert "holds this model already" in again.stdout
    assert "trust" in refused(
        "compare", "digits", "--costs", "uniform", "--model", "team_networks:build", "--out", base
    )


def test_a_factory_is_no_backbone_and_needs_no_trust_to_be_refused(factory):
    """It said to load it with --trust, which was given."""
    own = ("digits", "--model", "team_networks:build", "--epochs", "1", "--trust", "--out", factory / "base")
    assert inside("train", *own).returncode == 0
    head = ("digits", "--features", factory / "base", "--out", factory / "head")
    for more in ((), ("--trust",)):
        assert "base cannot be a backbone: 'team_networks:build' makes its network" in refused("train", *head, *more)


def test_a_network_that_does_not_take_the_samples_is_refused_before_training(factory):
    said = refused("train", "digits", "--model", "team_networks:wrong", "--trust", "--out", factory / "m")
    assert "does not take samples of 1 x 8 x 8" in said
    said = refused("train", "digits", "--model", "team_networks:none", "--trust", "--out", factory / "m")
    assert "team_networks:none" in said


def test_a_file_cannot_make_a_library_read_or_fetch_anything():
    for spec, arguments in (
        ("timm:resnet18", {"checkpoint_path": "x"}),
        ("torchvision:resnet18", {"weights": "DEFAULT"}),
    ):
        with pytest.raises(ValueError, match="unknown argument"):
            models.load(spec, 3, **arguments)


PROGRAM = RUN.partition("rows = ")[0] + "from csada.cli import main; sys.argv = ['csada', *sys.argv[1:]]; main()"


def csada(*words):
    code = [sys.executable, "-W", "ignore", "-c", PROGRAM, *map(str, words)]
    return subprocess.run(code, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Red and blue squares of 32 pixels."""
    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for k, name in enumerate(("red", "blue")):
        (folder / name).mkdir()
        for i in range(40):
            pixels = draw.integers(0, 90, (32, 32, 3), dtype=np.uint8)
            pixels[..., 2 * k] += 120
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu does this on the GPU")
@pytest.mark.parametrize("spec", ["timm:test_resnet", "torchvision:mobilenet_v3_small"])
def test_a_network_of_a_library_goes_from_train_to_fit(spec, photos, tmp_path):
    if not importlib.util.find_spec(library := spec.partition(":")[0]):
        assert f"{spec} needs {library}" in refused("train", photos, "--model", spec, "--out", tmp_path / "m")
        pytest.skip(f"{library} is not installed; the message that says so was seen")
    run = csada("train", photos, "--model", spec, "--size", 32, "--epochs", 2, "--out", tmp_path / "base")
    assert run.returncode == 0, run.stderr
    run = csada("fit", tmp_path / "base", photos, "--costs", "uniform", "--method", "csada", "--epochs", 1,
                "--out", tmp_path / "fitted", "--json")  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert set(json.loads(run.stdout)["rows"]) >= {"before", "before + rule", "after"}
    run = csada("train", photos, "--model", f"{spec}x", "--out", tmp_path / "other")
    assert run.returncode == 2 and "has no network" in run.stderr and len(run.stderr.splitlines()) == 1
