"""What training would cost at a size that nobody has run: arithmetic from records in results/, and assumptions named here.

    python benchmarks/scale.py            # writes the tables of docs/scale.md

Work is counted in forward passes of one image. A training step takes 3 (a backward pass is two forwards). CSADA attacks M
samples of a batch of B: K+1 forwards and K backwards to the pixels, which take one forward each; it then trains on B+M.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from table import insert, table

ROOT = Path(__file__).resolve().parents[1]
PEAK = 989e12  # FLOP/s of an H200 in bf16, dense, by its data sheet
PRICE = 3.0  # dollars for an hour of one GPU: an assumption
PER_MACHINE = 8
PARALLEL = 0.8, 0.95  # of N GPUs' speed that N GPUs reach: an assumption
K, TASKS = 10, 1 / 8  # attack steps; attacked samples per sample of a batch, as in the record
JPEG_PIXELS, JPEG_BYTES = 500 * 375, 110e3  # of a usual photograph of ImageNet
SIDE, HELD_OUT, MEMBERS, VIEWS = 224, 0.01, 3, 2
TRAIN, CSADA, SCORE = 3.0, (2 * K + 1) * TASKS + 3 * (1 + TASKS), 1.0


def residual(side: int, stem: int, blocks: tuple[int, ...], bottleneck: bool, classes: int) -> float:
    """Floating-point operations of a forward pass of a ResNet; two for each multiplication with its addition."""
    width, total = 64, 3 * 64 * stem**2 * (side // (2 if stem == 7 else 1)) ** 2
    side //= 4 if stem == 7 else 1
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        outer = inner * (4 if bottleneck else 1)
        for block in range(count):
            stride = 2 if stage and not block else 1
            after = side // stride
            if bottleneck:
                total += width * inner * side**2 + 9 * inner**2 * after**2 + inner * outer * after**2
            else:
                total += 9 * (width * inner + inner**2) * after**2
            if stride > 1 or width != outer:
                total += width * outer * after**2
            side, width = after, outer
    return 2.0 * (total + width * classes)


def transformer(side: int, patch: int, width: int, layers: int, classes: int) -> float:
    patches = (side // patch) ** 2
    n = patches + 1
    return 2.0 * (layers * (12 * n * width**2 + 2 * n**2 * width) + patches * 3 * patch**2 * width + width * classes)


SMALL = residual(32, 3, (3, 4, 6, 3), False, 10)  # what was measured: ResNet-34 for CIFAR-10


@dataclass(frozen=True)
class Case:
    data: str
    network: str
    flops: float  # of a forward pass
    images: float
    epochs: float  # of the baseline
    gpus: int
    share: tuple[float, float]  # of the measured share of the peak: the pessimistic and the optimistic bound

    @property
    def stages(self) -> dict[str, float]:
        """Forward passes."""
        seen, restart = self.images * self.epochs, self.images * self.epochs / 4
        return {
            f"baseline, {self.epochs:g} epochs": TRAIN * seen,
            f"restart, {self.epochs / 4:g} epochs": TRAIN * restart,
            f"restart with mixup, {self.epochs / 4:g} epochs": TRAIN * restart,
            f"CSADA, K = {K}, {self.epochs / 10:g} epochs": CSADA * seen / 10,
            f"scores of {HELD_OUT:.0%} held out, {MEMBERS} networks, {VIEWS} views": (
                SCORE * self.images * HELD_OUT * MEMBERS * VIEWS
            ),
        }


CASES = (
    Case("ImageNet-1k", "ResNet-50", residual(SIDE, 7, (3, 4, 6, 3), True, 1000), 1_281_167, 90, 8, (1 / 3, 1)),
    Case("100 million images", "ViT-B/16", transformer(SIDE, 16, 768, 12, 1000), 1e8, 30, 64, (1 / 2, 4 / 3)),
)


@dataclass(frozen=True)
class Measured:
    share: float  # of the peak: cross-entropy
    share_csada: float
    decode_pixels: float  # per second and core
    cached: float  # images of 224 pixels per second from a cache in memory
    anonymous: float  # bytes of memory per image of a loader
    images: int  # of which that was measured


def measured(results: Path = ROOT / "results") -> Measured:
    first, cached, large = (
        json.loads((results / f"{name}.json").read_text()) for name in ("first-epoch-cuda", "input-cuda", "large")
    )
    steps = {name: first["as it is"][name] for name in ("cross_entropy", f"csada K={K}")}
    plain, csada = (
        work * SMALL * step["batch_size"] / step["step"] / PEAK
        for work, step in zip((TRAIN, CSADA), steps.values(), strict=True)
    )
    cache, images = cached["cache"], large["data"]["images"]
    most = max(large[kind]["anonymous_bytes"]["drawing on top"] for kind in ("folder", "shards"))
    return Measured(
        plain,
        csada,
        cache["images"] * 256**2 / cache["decoding_seconds"],
        cache["images"] / cache["cached_seconds"],
        most / images,
        images,
    )


def speeds(case: Case, found: Measured) -> tuple[float, float]:
    """Images per second of one GPU in training: least and most."""
    least, most = (found.share * share * PEAK / (TRAIN * case.flops) for share in case.share)
    return least, most


def gpu_hours(case: Case, found: Measured) -> dict[str, tuple[float, float]]:
    """Least and most, of each stage. The optimistic bound comes first."""
    hours = {}
    for name, passes in case.stages.items():
        share = found.share_csada if name.startswith("CSADA") else found.share
        pessimistic, optimistic = (
            passes * case.flops / (share * bound * PEAK * parallel) / 3600
            for bound, parallel in zip(case.share, PARALLEL, strict=True)
        )
        hours[name] = optimistic, pessimistic
    return hours


def costs(case: Case, found: Measured) -> str:
    hours = gpu_hours(case, found)
    hours["**together**"] = sum(low for low, _ in hours.values()), sum(high for _, high in hours.values())
    rows = [
        [
            name,
            number(pair),
            number((pair[0] / case.gpus, pair[1] / case.gpus)),
            number((pair[0] * PRICE, pair[1] * PRICE)),
        ]
        for name, pair in hours.items()
    ]
    return table(["", "GPU-hours", f"hours on {case.gpus} GPUs", "dollars"], rows)


def number(pair: tuple[float, ...]) -> str:
    """Two digits: more would be a lie."""
    texts = ["under 0.01" if value < 0.01 else f"{float(f'{value:.2g}'):,.10g}" for value in pair]
    return " to ".join(dict.fromkeys(texts))


def inputs(found: Measured) -> str:
    names = [f"{case.data}, {case.network}" for case in CASES]
    rates = [speeds(case, found) for case in CASES]
    pixels = 3 * SIDE**2
    per_core = found.decode_pixels / JPEG_PIXELS

    def times(factor: float) -> list[str]:
        return [number((least * factor, most * factor)) for least, most in rates]

    rows = [
        ["images/s that one GPU trains on", *times(1)],
        ["CPU cores per GPU, if every epoch decoded", *times(1 / per_core)],
        ["network per GPU, if every epoch read JPEGs, GB/s", *times(JPEG_BYTES / 1e9)],
        ["read from the cache per GPU, GB/s", *times(pixels / 1e9)],
        ["JPEGs, TB: read once", *(number((case.images * JPEG_BYTES / 1e12,)) for case in CASES)],
        ["cache of decoded pixels, TB: read once in each epoch", *(number((case.images * pixels / 1e12,)) for case in CASES)],
        ["core-hours to build the cache", *(number((case.images / per_core / 3600,)) for case in CASES)],
        ["memory of a loader for names and ids, GB", *(number((case.images * found.anonymous / 1e9,)) for case in CASES)],
    ]  # fmt: skip
    return table(["", *names], rows)


def known(found: Measured) -> str:
    rows = [
        ["ResNet-34 for CIFAR-10, GFLOP forward", f"{SMALL / 1e9:.2f}", "counted"],
        *([f"{case.network} at {SIDE} pixels, GFLOP forward", f"{case.flops / 1e9:.1f}", "counted"] for case in CASES),
        ["cross-entropy step, share of the H200's peak", f"{found.share:.0%}", "measured"],
        [f"CSADA step, K = {K}, share of the peak", f"{found.share_csada:.0%}", "measured"],
        ["JPEG pixels that a core decodes per second", f"{found.decode_pixels / 1e6:.0f} million", "measured"],
        [f"images of {SIDE} pixels per second from a cache in memory", number((found.cached,)), "measured"],
        [f"memory of a loader per image, bytes ({found.images:,} images)", number((found.anonymous,)), "measured"],
        ["forward passes per image: training / CSADA", f"{TRAIN:g} / {CSADA:g}", "counted"],
        ["peak of an H200 in bf16, TFLOP/s", f"{PEAK / 1e12:.0f}", "data sheet"],
        *(
            [f"{case.network}: share of the measured share", f"{case.share[0]:.2f} to {case.share[1]:.2f}", "assumed"]
            for case in CASES
        ),
        ["what N GPUs reach of N times one", f"{PARALLEL[0]} to {PARALLEL[1]}", "assumed"],
        ["a usual JPEG: pixels, bytes", f"{JPEG_PIXELS:,}, {JPEG_BYTES:,.0f}", "assumed"],
        ["an hour of one GPU, dollars", f"{PRICE:.2f}", "assumed"],
    ]  # fmt: skip
    return table(["", "value", ""], rows)


def sections() -> dict[str, str]:
    found = measured()
    return {
        "known": known(found),
        **{
            f"costs-{n}": f"**{case.data}, {case.network}**\n\n{costs(case, found)}"
            for n, case in enumerate(CASES, start=1)
        },
        "inputs": inputs(found),
    }


def page(text: str) -> str:
    for name, section in sections().items():
        text = insert(text, name, section)
    return text


if __name__ == "__main__":
    target = ROOT / "docs" / "scale.md"
    target.write_text(page(target.read_text()))
    print(*sections().values(), sep="\n\n")
