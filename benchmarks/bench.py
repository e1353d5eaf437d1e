"""How fast csada is: an epoch, the plain transcription, other libraries' attacks, scaling, and memory.

    python benchmarks/bench.py --device cpu            (a few minutes; --quick: well under one, to see that it runs)
    python benchmarks/table.py                         (docs/benchmarks.md and its figures, from the JSON files)

What is compared runs by turns, A B C C B A ..., after a warm-up; a ratio is the median of the ratios within a round, so
that a slow moment of the machine meets both sides. On a CPU the clock is the process's own time on one thread, which
other processes disturb least (--clock wall for the wall's); on a GPU it is the wall's, with the device synchronised.

Every epoch does the same work: the learning rate is zero, labels are what the model predicts, and steps are small, so that
no attack ends before its K steps. That is the slowest case for csada; what early stops save is shown by the suite "attacks".
"""

import argparse
import copy
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import peers
import torch
import transcription
from torch import nn
from torch.nn import functional as F

import csada
from csada.data.augment import Normalization
from csada.data.batches import batches
from csada.data.cifar10 import AUGMENTATION, NORMALIZATION
from csada.data.splits import Part
from csada.methods.cross_entropy import CrossEntropy
from csada.methods.csada import CSADA
from csada.models import cnn, resnet
from csada.models.modes import training_mode
from csada.training import Loop, Settings

ROOT = Path(__file__).resolve().parents[1]
Work = Callable[[], object]
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Bench:
    device: str
    quick: bool
    clock: str
    rounds: int

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() if self.clock == "wall" else time.process_time()

    def interleaved(self, work: dict[str, Work], repeat: int = 1) -> Seconds:
        """Seconds of each work, by turns; with repeat, each turn runs it so often."""
        for run in work.values():
            run()
        seconds: Seconds = {name: [] for name in work}
        for i in range(self.rounds):
            for name in list(work)[:: -1 if i % 2 else 1]:
                begin = self.now()
                for _ in range(repeat):
                    work[name]()
                seconds[name].append((self.now() - begin) / repeat)
        return seconds


def ratio(seconds: Seconds, a: str, b: str) -> float:
    return statistics.median(x / y for x, y in zip(seconds[a], seconds[b], strict=True))


def medians(seconds: Seconds) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


# what is trained


@dataclass(frozen=True)
class Setting:
    """A model with data whose labels it predicts."""

    model: nn.Module
    part: Part
    classes: int
    device: str
    batch_size: int
    tasks: int
    precision: str

    def method(self, steps: int, tasks: int | None = None) -> CSADA:
        costs = csada.CostMatrix.uniform(self.classes)
        return CSADA(costs, tasks=tasks or self.tasks, steps=steps, step_size=1e-7)

    def cross_entropy(self) -> CrossEntropy:
        return CrossEntropy(csada.CostMatrix.uniform(self.classes))

    def epoch(self, method, *, freeze_norm: bool, batch_size: int | None = None) -> Work:
        """One epoch as `fit` runs it."""
        device = torch.device(self.device)
        settings = Settings(lr=0, batch_size=batch_size or self.batch_size, precision=self.precision)
        loop = Loop(copy.deepcopy(self.model), method, settings, device)
        training_mode(loop.model, freeze_norm=freeze_norm)
        source = batches(self.part, settings.batch_size, device)
        generator = torch.Generator(device)
        return lambda: loop.epoch(0, source, generator.manual_seed(0))

    def bare_epoch(self, steps: int) -> Work:
        """The passes that CSADA needs and nothing else: no draw, no masks, no projection. What is above it is overhead."""
        model = copy.deepcopy(self.model)
        training_mode(model, freeze_norm=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9)
        source = batches(self.part, self.batch_size, self.device)
        generator = torch.Generator(self.device)

        def run() -> None:
            for batch in source.epoch(generator.manual_seed(0)):
                x, y = batch.x[: self.tasks], batch.y[: self.tasks]
                for _ in range(steps):
                    point = x.clone().requires_grad_()
                    torch.autograd.grad(F.cross_entropy(model(point), y, reduction="sum"), point)
                with torch.no_grad():
                    model(x)
                optimizer.zero_grad()
                F.cross_entropy(model(torch.cat([batch.x, x])), torch.cat([batch.y, y])).backward()
                optimizer.step()

        return run

    def transcribed_epoch(self, steps: int) -> Work:
        model, method = copy.deepcopy(self.model), self.method(steps)
        training_mode(model, freeze_norm=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9)
        weights = torch.tensor(method.costs.weights(), dtype=torch.float32, device=self.device)
        source = batches(self.part, self.batch_size, self.device)
        generator = torch.Generator(self.device)

        def run() -> None:
            pairs = ((batch.x, batch.y) for batch in source.epoch(generator.manual_seed(0)))
            attack = {"epsilon": method.epsilon, "step_size": method.step_size, "steps": steps}
            transcription.epoch(model, pairs, optimizer, weights, self.tasks, method.weight, **attack)

        return run


def predicted(model: nn.Module, part: Part, device: str) -> torch.Tensor:
    with torch.no_grad():
        model.eval()
        return torch.cat([model(batch.x).argmax(1).cpu() for batch in batches(part, 512, device).epoch()])


def digits(images: int) -> Part:
    """scikit-learn's digits, 8x8 pixels."""
    part = csada.data.load("digits").train
    return part.take(torch.arange(images) % len(part))


def cifar(images: int) -> Part:
    """Shaped like CIFAR-10, with its shifts and mirroring."""
    x = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Part(x, torch.zeros(images, dtype=torch.long), NORMALIZATION, AUGMENTATION)


def setting(bench: Bench, images: int, classes: int = 10, width: int = 16) -> Setting:
    """CPU: the small CNN on digits, batch 64, 16 attacked. CUDA: ResNet-34 on CIFAR-10, bf16, batch 512, 64 attacked."""
    if bench.cuda:
        model, part = resnet(34, classes).cuda(), cifar(images)
        batch_size, tasks, precision = 512, 64, "bf16"
    else:
        model, part = cnn(1, 8, classes, width), digits(images)
        batch_size, tasks, precision = 64, 16, "32"
    part = Part(part.x, predicted(model, part, bench.device), part.normalization, part.augmentation)
    return Setting(model, part, classes, bench.device, batch_size, tasks, precision)


# the suites


def suite_epoch(bench: Bench) -> dict:
    """A CSADA epoch over a cross-entropy epoch."""
    images = (50_000 if not bench.quick else 2_048) if bench.cuda else (1_078 if not bench.quick else 512)
    at = setting(bench, images)
    work = {"cross_entropy": at.epoch(at.cross_entropy(), freeze_norm=False)}
    if bench.cuda:
        work["cross_entropy, batch norm frozen"] = at.epoch(at.cross_entropy(), freeze_norm=True)
    for steps in (5, 10):
        work[f"csada K={steps}"] = at.epoch(at.method(steps), freeze_norm=True)
    if not bench.cuda:
        work["passes alone, K=5"] = at.bare_epoch(5)
    seconds = bench.interleaved(work)
    return {
        "setting": describe(bench, at),
        "seconds": medians(seconds),
        "all_seconds": seconds,
        "ratios": {name: ratio(seconds, name, "cross_entropy") for name in work},
    }


def suite_transcription(bench: Bench) -> dict:
    """csada's epoch against the plain transcription of the algorithms."""
    images = (10_240 if not bench.quick else 1_024) if bench.cuda else (1_078 if not bench.quick else 512)
    at = setting(bench, images)
    work, ratios = {}, {}
    for steps in (5, 10):
        work[f"csada K={steps}"] = at.epoch(at.method(steps), freeze_norm=True)
        work[f"transcription K={steps}"] = at.transcribed_epoch(steps)
    seconds = bench.interleaved(work)
    for steps in (5, 10):
        ratios[f"K={steps}"] = ratio(seconds, f"transcription K={steps}", f"csada K={steps}")
    return {
        "setting": describe(bench, at),
        "seconds": medians(seconds),
        "all_seconds": seconds,
        "speedup": ratios,
    }


def suite_attacks(bench: Bench) -> dict:
    """Targeted attacks per second against other libraries, in pixels of [0, 1]."""
    model, pixels, classes = attacked_model(bench)
    cases = []
    for batch_size in (64,) if bench.quick else (64, 256):
        for name, epsilon, step_size in (("no early stop", 1e-4, 1e-5), ("early stops", 0.3, 0.03)):
            if bench.cuda and name == "early stops":
                continue  # on a GPU every attack takes all its steps: nothing waits for the device
            for precision in ("32", "bf16") if bench.cuda else ("32",):
                x = pixels[:batch_size].to(bench.device)
                with torch.no_grad():
                    y = model(x).argmax(1)
                shift = torch.randint(1, classes, (batch_size,), generator=torch.Generator().manual_seed(0))
                target = (y + shift.to(bench.device)) % classes
                measured = attack_case(bench, model, x, y, target, epsilon, step_size, 10, classes, precision)
                names = {"case": name, "batch_size": batch_size, "steps": 10, "precision": precision}
                cases.append({**names, "epsilon": epsilon, "step_size": step_size, **measured})
    return {"model": "ResNet-34" if bench.cuda else "small CNN trained on digits", "cases": cases}


def attacked_model(bench: Bench) -> tuple[nn.Module, torch.Tensor, int]:
    if bench.cuda:
        return resnet(34, 10).cuda().eval(), cifar(256).x / 255, 10
    train = csada.data.load("digits").train
    part = Part(train.x, train.y, Normalization(scale=16))
    model = csada.fit(cnn(1, 8, 10), part, "cross_entropy", epochs=10, lr=0.05, batch_size=64).model
    return model, train.x[:256] / 16, 10


class Counted(nn.Module):
    """A model that notes how many samples each call had."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = copy.deepcopy(model), []
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        return self.model(x).float()  # one library turns logits into NumPy arrays, which know no bf16


def attack_case(bench, model, x, y, target, epsilon, step_size, steps, classes, precision) -> dict:
    def ours(x, y, target):
        return csada.attack(
            counted["csada"], x, y, target, epsilon, step_size, steps, "linf", "sign", (0.0, 1.0)
        ).adversarial

    counted, attacks, absent = {"csada": Counted(model)}, {"csada": ours}, {}
    for name in peers.PEERS:
        counted[name] = Counted(model)
        try:
            attacks[name] = peers.build(name, counted[name], epsilon, step_size, steps, tuple(x.shape[1:]), classes)
        except ImportError as error:
            absent[name] = f"not installed: {error}"

    def under(attack):
        def run():
            with torch.autocast(bench.device, torch.bfloat16, enabled=precision == "bf16"):
                return attack(x, y, target)

        return run

    work = {name: under(attack) for name, attack in attacks.items()}
    passes, reached = {}, {}
    for name in list(work):
        try:
            adversarial = work[name]()
        except RuntimeError as error:
            absent[name] = f"does not run here: {str(error).splitlines()[0]}"
            del work[name]
            continue
        calls = counted[name].calls
        passes[name] = {"calls": len(calls), "of_whole_batch": sum(calls) / len(x)}
        with torch.no_grad():
            reached[name] = float((model(adversarial).argmax(1) == target).float().mean())
    for name in [name for name in work if name != "csada"]:
        work[f"{name}, judged"] = judged(work[name], counted[name], target)
    seconds = bench.interleaved(work, repeat=2 if bench.quick or bench.cuda else 3)
    fastest = min(
        (name for name in attacks if name in work and name != "csada"),
        key=lambda n: statistics.median(seconds[n]),
        default=None,
    )
    return {
        "attacks_per_second": {name: len(x) / value for name, value in medians(seconds).items()},
        "forward_passes": passes,
        "reached": reached,
        "fastest_peer": fastest,
        "speed_over_fastest_peer": fastest and ratio(seconds, fastest, "csada"),
        "speed_over_fastest_peer_judged": fastest and ratio(seconds, f"{fastest}, judged", "csada"),
        "absent": absent,
    }


def judged(run: Work, model: nn.Module, target: torch.Tensor) -> Work:
    """A peer returns samples alone; one more forward pass says which reached their target, as csada's result does."""

    def work():
        adversarial = run()
        with torch.no_grad():
            return model(adversarial).argmax(1) == target

    return work


def suite_scaling(bench: Bench) -> dict:
    """The ratio of a CSADA epoch to a cross-entropy epoch as K, M, the batch, the classes and the model grow."""
    images = (4_096 if not bench.quick else 1_024) if bench.cuda else (1_024 if not bench.quick else 256)
    at = setting(bench, images)
    steps = 10 if bench.cuda else 5
    axes = {
        "steps": (1, 5) if bench.quick else (1, 2, 5, 10, 20),
        "tasks": tuple(at.tasks * k // 4 for k in ((2, 4) if bench.quick else (1, 2, 4, 8, 16))),
        "batch_size": (32, 64) if bench.quick else (128, 256, 512, 1024) if bench.cuda else (32, 64, 128, 256, 512),
        "classes": (10, 100) if bench.quick else (10, 100, 1000),
    }
    baseline = at.epoch(at.cross_entropy(), freeze_norm=False)
    work = {"ce": baseline} | {k: at.epoch(at.method(k), freeze_norm=True) for k in axes["steps"]}
    found = {"steps": curve(bench, work, {k: ("ce", k) for k in axes["steps"]})}
    work = {"ce": baseline} | {m: at.epoch(at.method(steps, m), freeze_norm=True) for m in axes["tasks"]}
    found["tasks"] = curve(bench, work, {m: ("ce", m) for m in axes["tasks"]})
    work = {}
    for n in axes["batch_size"]:
        work["ce", n] = at.epoch(at.cross_entropy(), freeze_norm=False, batch_size=n)
        method = at.method(steps, at.tasks * n // at.batch_size)
        work["csada", n] = at.epoch(method, freeze_norm=True, batch_size=n)
    found["batch_size"] = curve(bench, work, {n: (("ce", n), ("csada", n)) for n in axes["batch_size"]})
    found["classes"] = curve_of(bench, {c: setting(bench, images, classes=c) for c in axes["classes"]}, steps)
    if not bench.cuda:  # how the costs of calls, beside arithmetic, matter less as the model grows
        widths = (16,) if bench.quick else (16, 32, 64)
        found["width"] = curve_of(bench, {w: setting(bench, images, width=w) for w in widths}, steps)
    return {"setting": describe(bench, at), "K": steps, "axes": found}


def curve_of(bench: Bench, settings: dict[int, Setting], steps: int) -> list[dict]:
    work = {}
    for value, at in settings.items():
        work["ce", value] = at.epoch(at.cross_entropy(), freeze_norm=False)
        work["csada", value] = at.epoch(at.method(steps), freeze_norm=True)
    return curve(bench, work, {value: (("ce", value), ("csada", value)) for value in settings})


def curve(bench: Bench, work: dict, pairs: dict) -> list[dict]:
    seconds = bench.interleaved(work)
    middle = medians(seconds)
    return [
        {"value": value, "ratio": ratio(seconds, ours, ce), "csada": middle[ours], "cross_entropy": middle[ce]}
        for value, (ce, ours) in pairs.items()
    ]


MEMORY = ("cross_entropy", "csada", "transcription")


def suite_memory(bench: Bench) -> dict:
    """Peak memory of an epoch, each in a process of its own."""
    peaks = {}
    for variant in MEMORY:
        command = [sys.executable, __file__, "--device", bench.device, "--memory-of", variant]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[variant] = json.loads(done.stdout.splitlines()[-1])
    return {"setting": describe(bench, memory_setting(bench, 512)), "K": 5, "peak_mib": peaks}


def memory_setting(bench: Bench, images: int) -> Setting:
    if bench.cuda:
        return setting(bench, images)
    model, part = cnn(3, 32, 10, width=32), cifar(images)
    return Setting(model, part, 10, "cpu", 256, 64, "32")


def peak_memory(bench: Bench, variant: str) -> dict:
    """In this process; the CPU's peak is that of the resident set, before and after."""
    at = memory_setting(bench, 2_048 if bench.cuda else 512)
    work = {
        "cross_entropy": lambda: at.epoch(at.cross_entropy(), freeze_norm=False),
        "csada": lambda: at.epoch(at.method(5), freeze_norm=True),
        "transcription": lambda: at.transcribed_epoch(5),
    }[variant]()
    if not bench.cuda:
        before = resident_peak()
        work()
        return {"before": before, "peak": resident_peak()}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return {"peak": torch.cuda.max_memory_allocated() / 2**20, "reserved": torch.cuda.max_memory_reserved() / 2**20}


def resident_peak() -> float:
    """MiB. Not ru_maxrss: Linux lets a child start from its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise SystemExit("peak memory is read from /proc/self/status, which this system has not")


SUITES = {
    "epoch": suite_epoch,
    "transcription": suite_transcription,
    "attacks": suite_attacks,
    "scaling": suite_scaling,
    "memory": suite_memory,
}


def bars(bench: Bench, found: dict) -> list[dict]:
    """What we set out to reach, and what was measured."""
    limit = []  # name, measured, bar, whether the measured is to be at most (else at least) the bar
    if "epoch" in found and not bench.cuda:
        limit.append(("CSADA epoch over cross-entropy epoch, K=5", found["epoch"]["ratios"]["csada K=5"], 2.5, True))
    if "epoch" in found and bench.cuda and not bench.quick:
        for name, bar in (("csada K=10", 3.0), ("csada K=5", 2.2), ("cross_entropy", 1.2)):
            limit.append((f"seconds of an epoch, {name}", found["epoch"]["seconds"][name], bar, True))
    if "transcription" in found:
        for k, speedup in found["transcription"]["speedup"].items():
            limit.append((f"times as fast as the transcription, {k}", speedup, 3 if bench.cuda else 1.15, False))
    for case in found.get("attacks", {}).get("cases", []):
        if case["fastest_peer"]:
            kind = f"{case['case']}, batch {case['batch_size']}, precision {case['precision']}"
            name = f"attacks/s over {case['fastest_peer']}'s, {kind}"
            limit.append((name, case["speed_over_fastest_peer"], 0.95, False))
    if "scaling" in found:
        ratios = [point["ratio"] for point in found["scaling"]["axes"]["classes"]]
        spread = max(abs(r / ratios[0] - 1) for r in ratios)
        limit.append(("change of the ratio from 10 classes to more", spread, 0.10, True))
    return [
        {
            "what": what,
            "measured": value,
            "bar": bar,
            "at_most": at_most,
            "met": value <= bar if at_most else value >= bar,
        }
        for what, value, bar, at_most in limit
    ]


def describe(bench: Bench, at: Setting) -> dict:
    return {
        "model": f"{type(at.model).__name__}, {sum(p.numel() for p in at.model.parameters()):,} parameters",
        "images": len(at.part),
        "shape": list(at.part.x.shape[1:]),
        "classes": at.classes,
        "batch_size": at.batch_size,
        "tasks": at.tasks,
        "precision": at.precision,
    }


def environment(bench: Bench) -> dict:
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for name in ("torchattacks", "foolbox", "adversarial-robustness-toolbox"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    if bench.cuda:
        versions |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {
        "hardware": {
            "gpu": torch.cuda.get_device_name() if bench.cuda else None,
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "versions": versions,
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--quick", action="store_true", help="two rounds of little work: shows that it runs")
    parser.add_argument("--rounds", type=int, help="default: 7, on a GPU 5, with --quick 2")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's threads on the CPU; default: 1")
    parser.add_argument("--clock", choices=("process", "wall"), help="default: process on a CPU, wall on a GPU")
    parser.add_argument("--out", type=Path, help="default: results/benchmarks-DEVICE.json, with --quick in build/")
    parser.add_argument("--memory-of", choices=MEMORY, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = given.clock or ("wall" if given.device == "cuda" else "process")
    bench = Bench(
        given.device, given.quick, clock, given.rounds or (2 if given.quick else 5 if given.device == "cuda" else 7)
    )
    if given.memory_of:
        print(json.dumps(peak_memory(bench, given.memory_of)))
        return

    found, took = {}, {}
    for name in given.suite:
        begin = time.perf_counter()
        found[name] = SUITES[name](bench)
        took[name] = time.perf_counter() - begin
        print(f"{name}: {took[name]:.0f} s", file=sys.stderr, flush=True)
        write(bench, given.out, found, took)
    for bar in bars(bench, found):
        sign = "<=" if bar["at_most"] else ">="
        print(f"{'met ' if bar['met'] else 'MISSED'} {bar['what']}: {bar['measured']:.3g} (bar {sign} {bar['bar']})")


def write(bench: Bench, out: Path | None, found: dict, took: dict) -> None:
    """After every suite: a machine that is taken away leaves what was measured."""
    record = {
        "benchmark": "csada",
        "device": bench.device,
        "quick": bench.quick,
        "clock": bench.clock,
        "rounds": bench.rounds,
        **environment(bench),
        **found,
        "bars": bars(bench, found),
        "suite_seconds": took,
    }
    out = out or ROOT / ("build" if bench.quick else "results") / f"benchmarks-{bench.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    partial.write_text(json.dumps(rounded(record), indent=1) + "\n")
    os.replace(partial, out)
    print(out)


def rounded(value):
    """Four digits say all that a clock knows."""
    if isinstance(value, dict):
        return {str(key): rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
