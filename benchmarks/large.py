"""200,000 JPEG images of 64 pixels, in a folder and in tar shards: how long until they are decoded, what a kill costs, and
how fast a finished cache is.

    CSADA_DATA=FOLDER python benchmarks/large.py          # FOLDER holds CIFAR-10; 12 minutes of CPU time

Each image is a crop of one of CIFAR-10, enlarged, a little brighter or darker, and written as JPEG: no two have the same bytes.
A cache is built twice, each time by a process of its own: undisturbed, and killed (SIGKILL) half-way and started again. A third
process opens it and draws shuffled batches from it, as training does. What is compared is measured within one run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import csada.data
from csada.data.augment import Augmentation, Normalization
from csada.data.batches import batches
from csada.reading import write_json
from csada.workflow.runs import environment

BATCH, EPOCHS, PER_SHARD = 512, 3, 10_000


def pictures(place: Path) -> None:
    """CIFAR-10 as arrays: x [60000, 32, 32, 3] and the names of the classes."""
    splits = csada.data.load("cifar10")
    np.save(place / "x.npy", torch.cat([part.x for part in splits.parts.values()]).permute(0, 2, 3, 1).numpy())
    np.save(place / "y.npy", np.array(splits.classes)[torch.cat([part.y for part in splits.parts.values()]).numpy()])


def make(root: Path, total: int, side: int, numbers: range) -> list[bytes]:
    """One shard, and its images as files; the hashes of their bytes."""
    x, classes = np.load(root / "x.npy", mmap_mode="r"), np.load(root / "y.npy").tolist()
    order, hashes = np.random.default_rng(0).permutation(len(x)), []
    with tarfile.open(root / "shards" / f"{numbers.start // PER_SHARD:05}.tar", "w") as tar:
        for i in numbers:
            k, draw = order[i % len(x)], np.random.default_rng([1, i])
            left, top, size = (*draw.uniform(0, 4, 2), draw.uniform(26, 28))
            image = Image.fromarray(x[k]).resize(
                (side, side), Image.Resampling.BICUBIC, (left, top, left + size, top + size)
            )
            table = np.clip(np.arange(256) * draw.uniform(0.85, 1.15), 0, 255).astype(np.uint8)
            encoded = BytesIO()
            image.point(table.tolist() * 3).save(encoded, "JPEG", quality=90)
            (root / "folder" / classes[k] / f"{i:06}.jpg").write_bytes(encoded.getvalue())
            for name, content in ((f"{i:06}.jpg", encoded.getvalue()), (f"{i:06}.cls", classes[k].encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
            hashes.append(hashlib.blake2b(encoded.getvalue(), digest_size=16).digest())
    return hashes


def made(root: Path, total: int, side: int) -> dict[str, Any]:
    begin = time.perf_counter()
    (root / "shards").mkdir()
    pictures(root)
    for name in np.unique(np.load(root / "y.npy")).tolist():
        (root / "folder" / name).mkdir(parents=True)
    ranges = [range(start, min(start + PER_SHARD, total)) for start in range(0, total, PER_SHARD)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        hashes = [each for some in pool.map(partial(make, root, total, side), ranges) for each in some]
    size = sum(path.stat().st_size for path in (root / "shards").iterdir())
    return {
        "images": total,
        "different": len(set(hashes)),
        "side": side,
        "shards": len(ranges),
        "bytes_of_shards": size,
        "seconds_to_make": time.perf_counter() - begin,
    }


def status(pid: int | str = "self") -> dict[str, int]:
    """Bytes by the names of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: int(value.split()[0]) << 10 for name, _, value in (e.partition(":") for e in lines) if "kB" in value}


def said(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def load(place: str, side: int) -> None:
    """In a process of its own: opens or builds the cache, then draws from it; says what happens as lines of JSON."""
    said(anonymous=status()["RssAnon"])
    begin = time.perf_counter()
    splits = csada.data.load(
        place, size=side, on_progress=lambda done, total: said(done=done, of=total, at=time.perf_counter() - begin)
    )
    said(loaded=time.perf_counter() - begin)
    sys.stdin.readline()  # whoever started this goes on, or not
    part, draw = splits.train, torch.Generator()

    def raw() -> Iterable[Any]:
        order = torch.randperm(len(part), generator=draw)
        return (part.x.index_select(0, index) for index in torch.split(order, BATCH))

    plain = csada.data.Part(part.x, part.y, part.normalization)
    kinds: dict[str, Callable[[], Iterable[Any]]] = {
        "gathered": raw,
        "gathered and normalised": lambda: batches(plain, BATCH).epoch(draw),
        "gathered, shifted and normalised": lambda: batches(part, BATCH).epoch(draw),
    }
    assert plain.augmentation == Augmentation() and part.normalization != Normalization()
    for epoch in range(EPOCHS + 1):  # the first one warms up
        for name, drawn in kinds.items():
            begin = time.perf_counter()
            for _ in drawn():
                pass
            said(kind=name, epoch=epoch, images_per_second=len(part) / (time.perf_counter() - begin))
    said(peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


class Loader:
    """The process, and the peak of its anonymous memory."""

    def __init__(self, place: Path, side: int, cache: Path):
        command = [sys.executable, __file__, "--load", str(place), "--side", str(side)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"CSADA_CACHE": str(cache)},
        )
        self.begin, self.most = time.perf_counter(), 0
        self.imported = next(self.lines())["anonymous"]

    def lines(self) -> Iterable[dict[str, Any]]:
        for line in self.process.stdout:
            if not self.process.poll():
                self.most = max(self.most, status(self.process.pid).get("RssAnon", 0))
            yield json.loads(line)

    def until(self, fraction: float) -> tuple[float, float]:
        """Seconds since it was started, and images decoded per second; killed where it should not end."""
        first: dict[str, Any] | None = None
        last: dict[str, Any] = {}
        for line in self.lines():
            if "loaded" in line:
                break
            first, last = first or line, line
            if line["done"] >= fraction * line["of"] and fraction < 1:
                self.process.send_signal(signal.SIGKILL)
                break
        else:
            raise RuntimeError("the loader ended by itself")
        seconds = time.perf_counter() - self.begin
        speed = (last["done"] - first["done"]) / (last["at"] - first["at"]) if first and last != first else 0.0
        return seconds, speed

    def epochs(self) -> dict[str, float]:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, list[float]] = {}
        for line in self.lines():
            if line.get("epoch"):
                found.setdefault(line["kind"], []).append(line["images_per_second"])
        return {name: statistics.median(speeds) for name, speeds in found.items()}

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()


def hashed(cache: Path) -> dict[str, str]:
    """Of each file of decoded images and of what is known of them."""
    return {
        path.name: hashlib.file_digest(path.open("rb"), "blake2b").hexdigest()
        for path in sorted(cache.iterdir())
        if path.suffix in (".npy", ".npz")
    }


def measured(place: Path, side: int, root: Path) -> dict[str, Any]:
    whole, halves = root / "whole", root / "halves"
    with Loader(place, side, whole) as loader:
        seconds, speed = loader.until(1)
        building = loader.most - loader.imported
    with Loader(place, side, halves) as loader:
        killed, _ = loader.until(0.5)
    left = [path.suffix for path in halves.iterdir()]
    with Loader(place, side, halves) as loader:
        resumed, _ = loader.until(1)
    same = hashed(whole) == hashed(halves) and ".half" in left
    shutil.rmtree(halves)
    with Loader(place, side, whole) as loader:
        opened, _ = loader.until(1)
        drawn = loader.epochs()
        drawing, imported = loader.most - loader.imported, loader.imported
    shutil.rmtree(whole)
    return {
        "seconds": {
            "undisturbed": seconds,
            "killed half-way": killed,
            "resumed": resumed,
            "opened when it is there": opened,
        },
        "same_files_after_the_kill": same,
        "images_per_second": {"decoded": speed, **drawn},
        "times_as_fast_as_decoding": {name: value / speed for name, value in drawn.items()},
        "anonymous_bytes": {"imported": imported, "building on top": building, "drawing on top": drawing},
    }


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("results/large.json"))
    parser.add_argument("--load", help="measure this place in this process, and print it")
    given = parser.parse_args()
    if given.load:
        load(given.load, given.side)
        return
    begin, busy = time.perf_counter(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="csada-large-") as name:
        root = Path(name)
        data = made(root, given.images, given.side)
        found = {}
        for kind in ("folder", "shards"):
            found[kind] = measured(root / kind, given.side, root)
            busy.append(os.getloadavg()[0])
    bars = []
    for kind, each in found.items():
        fast, size = each["times_as_fast_as_decoding"], max(list(each["anonymous_bytes"].values())[1:]) / 1e9
        bars += [
            {"what": f"{kind}: resumes after a kill, same files", "met": each["same_files_after_the_kill"]},
            *(
                {"what": f"{kind}: {way}, times as fast as decoding", "measured": ratio, "bar": 20, "met": ratio >= 20}
                for way, ratio in fast.items()
            ),
            {"what": f"{kind}: anonymous memory, GB", "measured": size, "bar": 1.5, "met": size <= 1.5},
        ]
    about = {"date": time.strftime("%Y-%m-%d"), "seconds": time.perf_counter() - begin, "load_average": busy}
    write_json(given.out, rounded({**about, "data": data, **found, "bars": bars, "environment": vars(environment())}))
    for bar in rounded(bars):
        print(*bar.values())


if __name__ == "__main__":
    main()
