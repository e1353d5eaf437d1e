"""Every example runs, with small settings, where its library is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SETTINGS = {  # example: (any of these libraries, what its main takes)
    "plain_loop": ((), {"epochs": 3, "fine_tuning": 2}),
    "lightning_module": (("lightning", "pytorch_lightning"), {"epochs": 3, "fine_tuning": 2}),
    "transformers_text": (("transformers",), {"epochs": 10, "fine_tuning": 2}),
    "torchvision_model": (("torchvision",), {"epochs": 6, "fine_tuning": 1, "samples": 200}),
    "timm_model": (("timm",), {"architecture": "test_resnet", "epochs": 8, "fine_tuning": 1, "samples": 240}),
}
# Where torch comes without torchvision's compiled operators, its import fails for want of two declarations.
RUN = """
import importlib.util, json, runpy, sys
import torch
torch.set_num_threads(1)
if importlib.util.find_spec("torchvision"):
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
rows = runpy.run_path(sys.argv[1])["main"](**json.loads(sys.argv[2]))
print(json.dumps({name: [e.accuracy, e.mean_cost, e.confusion.tolist()] for name, e in rows.items()}))
"""


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_example_runs_and_learns(name, tmp_path):
    libraries, settings = SETTINGS[name]
    if libraries and not any(importlib.util.find_spec(library) for library in libraries):
        pytest.skip(f"{' or '.join(libraries)} is not installed")
    ran = subprocess.run(
        [sys.executable, "-c", RUN, EXAMPLES / f"{name}.py", json.dumps(settings)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    *printed, last = ran.stdout.splitlines()
    rows = json.loads(last)
    classes = len(rows["before"][2])
    assert all(accuracy > 2 / classes for accuracy, _, _ in rows.values())
    assert rows["before"][2] != rows["after"][2]
    for row, (accuracy, cost, _) in rows.items():
        (line,) = [line for line in printed if line.split(" accuracy")[0].rstrip() == row]
        assert f"accuracy {100 * accuracy:.2f} %, cost per 100 {100 * cost:.2f}" in line
    assert not list(tmp_path.iterdir())  # an example leaves nothing behind
