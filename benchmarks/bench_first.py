"""What the first epoch costs beside the later ones, on a GPU: each case in a process of its own, where nothing is warm.

    python benchmarks/bench_first.py                   (about two minutes; build/first-epoch-cuda.json)

The network is a ResNet-34 for small images in bf16, the images are noise, and the learning rate is zero: the work is that of
CIFAR-10. An epoch at batch 512 has 50,000 images; at batch 32 it is 150 batches, from which an epoch of 45,000 is reckoned.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from bench import Bench, environment

import csada
from csada.data.batches import batches
from csada.data.splits import Part
from csada.models import resnet
from csada.models.modes import training_mode
from csada.reading import write_json
from csada.training import Loop, Settings

COSTS = csada.CostMatrix.pareto(10, seed=0)
PAPER = {"weight": 2.0, "tau": 3.0, "steps": 10}
CASES = {  # method, its options, batch, images
    "csada K=10": ("csada", {"steps": 10}, 512, 50_000),
    "csada K=5": ("csada", {"steps": 5}, 512, 50_000),
    "cross_entropy": ("cross_entropy", {}, 512, 50_000),
    "paper, batch 32": ("csada", {"estimator": "paper", **PAPER}, 32, 4_800),
    "class_mean, batch 32": ("csada", {"estimator": "class_mean", **PAPER}, 32, 4_800),
    "adjusted_penalty, batch 32": ("adjusted_penalty", {"alpha": 5.0}, 32, 4_800),
}


def measure(name: str, contiguous: bool = False, epochs: int = 4) -> dict:
    method, options, batch_size, images = CASES[name]
    device = torch.device("cuda")
    part = Part(torch.randn(images, 3, 32, 32, device=device), torch.randint(10, (images,), device=device))
    settings = Settings(lr=0.0, batch_size=batch_size, precision="bf16")
    loop = Loop(resnet(34, 10).to(device), csada.METHODS[method](COSTS, **options), settings, device)
    if contiguous:
        loop.model.to(memory_format=torch.contiguous_format)
    source, generator, seconds = batches(part, batch_size, device), torch.Generator(device), []
    for epoch in range(epochs):
        training_mode(loop.model, freeze_norm=method != "cross_entropy")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loop.epoch(epoch, source, generator.manual_seed(epoch))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    first, later = seconds[0], sorted(seconds[1:])[len(seconds[1:]) // 2]
    found = {"first": first, "later": later, "first_over_later": first / later, "step": later / len(source)}
    return {key: float(f"{value:.4g}") for key, value in found.items()} | {"batch_size": batch_size, "images": images}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, help="measure it in this process, and print it")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--search", action="store_true", help="with torch.backends.cudnn.benchmark")
    parser.add_argument("--contiguous", action="store_true", help="weights by channel, not with channels last")
    parser.add_argument("--out", type=Path, default=Path("build/first-epoch-cuda.json"))
    given = parser.parse_args()
    if given.case:
        torch.backends.cudnn.benchmark = given.search
        print(json.dumps(measure(given.case, given.contiguous)))
        return
    found = {}
    for name in given.cases:
        switches = [f"--{switch}" for switch in ("search", "contiguous") if getattr(given, switch)]
        command = [sys.executable, __file__, "--case", name, *switches]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, found[name], flush=True)
        write_json(given.out, {"cases": found, **environment(Bench("cuda", False, "wall", 1))})


if __name__ == "__main__":
    main()
