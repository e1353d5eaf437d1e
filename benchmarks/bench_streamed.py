"""What an epoch costs when the images do not fit on the device: CIFAR-10 streamed, beside the same epoch with all of it there.

    python benchmarks/bench_streamed.py --data FOLDER --out FILE                (a minute on a GPU, and reading the images)
    python benchmarks/bench_streamed.py --images 60 --batch 16 --model cnn --out FILE   (noise, on a CPU, to try it)

A ResNet-34 for small images, batches of 512; in bf16 and as a captured step on a GPU. `score` is a pass of `predict_logits`.
The learning rate is zero: the network is not a trained one. Both kinds take turns, round by round, and draw the same numbers.
`seconds` are medians of `rounds` after the warm-up; `losses` are those of all epochs.
"""

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

import csada
from csada.bounds import BOUNDS, VARIABLE
from csada.data.batches import batches
from csada.data.cifar10 import AUGMENTATION, NORMALIZATION
from csada.data.splits import Part
from csada.models import cnn, resnet
from csada.models.modes import training_mode
from csada.reading import write_json
from csada.training import Loop, Settings

COSTS = csada.CostMatrix.pareto(10, seed=0)
WARM, ROUNDS = 2, 5
METHODS = {"cross_entropy": {}, "csada": {"tasks": 64, "steps": 5}}


def noise(images):
    x = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Part(x, torch.arange(images) % 10, NORMALIZATION, AUGMENTATION)


def network(name, device):
    torch.manual_seed(0)
    return (cnn(3, 32, 10) if name == "cnn" else resnet(34, 10)).to(device)


def training(method, model, part, batch, device, streamed):
    """Each call is the next epoch and returns its loss."""
    settings = Settings(lr=0.0, batch_size=batch, precision="bf16" if device.type == "cuda" else "32")
    loop = Loop(network(model, device), csada.METHODS[method](COSTS, **METHODS[method]), settings, device)
    training_mode(loop.model, freeze_norm=method != "cross_entropy")
    source = batches(part, batch, device)
    if device.type == "cpu":
        source = replace(source, streamed=streamed)  # else nothing is, there
    assert source.streamed == streamed, "the images are within the bound; lower --megabytes"
    generator, done = torch.Generator(device), []

    def epoch():
        done.append(loop.epoch(len(done), source, generator.manual_seed(len(done))))
        return done[-1]

    return epoch


def scoring(model, part, device, streamed):
    net = network(model, device)
    return lambda: float(csada.predict_logits(net, part).logits.mean())


def compare(make, bounds):
    """Both kinds in turn."""
    works, rounds, values = {}, {}, {}
    for kind, bound in bounds.items():
        os.environ[VARIABLE] = f"device={bound}"
        works[kind], rounds[kind], values[kind] = make(kind == "streamed"), [], []
    for i in range(WARM + ROUNDS):
        for kind in list(bounds)[:: 1 if i % 2 else -1]:
            os.environ[VARIABLE] = f"device={bounds[kind]}"
            begin = time.perf_counter()
            values[kind].append(works[kind]())  # a number: the device is done
            rounds[kind].append(round(time.perf_counter() - begin, 4))
    seconds = {kind: statistics.median(times[WARM:]) for kind, times in rounds.items()}
    ratio = round(seconds["streamed"] / seconds["resident"], 4)
    return {"ratio": ratio, "seconds": seconds, "rounds": rounds, "losses": values}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with CIFAR-10; without it, noise is trained on")
    parser.add_argument("--images", type=int, default=45_000, help="how many of noise")
    parser.add_argument("--model", choices=["resnet34", "cnn"], default="resnet34")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--megabytes", type=float, default=64, help="allowed on the device")
    parser.add_argument("--out", type=Path, default=Path("build/streamed.json"))
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    part = noise(args.images) if args.data is None else csada.data.load("cifar10", args.data).train
    bounds = {"resident": BOUNDS["device"], "streamed": int(args.megabytes * 1e6)}
    record = {
        "benchmark": "streamed",
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "data": {"name": "noise" if args.data is None else "cifar10", "images": len(part), "bytes": part.x.nbytes},
        "model": args.model,
        "batch": args.batch,
        "allowed_bytes": bounds["streamed"],
        "methods": METHODS,
    }
    for method in METHODS:
        record[method] = compare(
            lambda streamed, m=method: training(m, args.model, part, args.batch, device, streamed), bounds
        )
    record["score"] = compare(lambda streamed: scoring(args.model, part, device, streamed), bounds)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, record)
    print(json.dumps({name: record[name]["ratio"] for name in (*METHODS, "score")}))


if __name__ == "__main__":
    main()
