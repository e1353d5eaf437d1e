"""How fast images arrive: the decoded cache against decoding in the loop, and augmented batches on the device.

    python benchmarks/bench_input.py

Prints one JSON line. `cache.ratio` is an epoch of 1,000 JPEGs (256 x 256) decoded with Pillow over an epoch read from
the cache; `device.images_per_second` is batches of 512 CIFAR-10-shaped images, drawn, shifted, mirrored and normalised.
Times are medians of several epochs after a warm-up.
"""

import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image

import csada.data
from csada.data.batches import batches
from csada.data.cache import square
from csada.data.cifar10 import AUGMENTATION, NORMALIZATION
from csada.data.splits import Part

REPEATS = 7


def median_seconds(work, device="cpu"):
    times = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])  # the first one warms up


def bench_cache(images=1000, side=256, size=224, batch_size=100):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CSADA_CACHE"] = f"{folder}/cache"
        root = Path(folder, "photos")
        per_class = images // 10
        for label in range(10):
            for part in ("train", "valid", "test"):
                (root / part / str(label)).mkdir(parents=True)
            for i in range(per_class):
                generator = np.random.default_rng([label, i])
                pixels = generator.integers(0, 256, (24, 24, 3), dtype=np.uint8)  # smooth, as photographs are
                picture = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
                picture.save(root / "train" / str(label) / f"{i:04}.jpg", quality=90)
            for part in ("valid", "test"):
                picture.save(root / part / str(label) / "0000.jpg")
        paths = sorted((root / "train").glob("*/*.jpg"))
        begin = time.perf_counter()
        train = csada.data.load(root, size=size).train
        build = time.perf_counter() - begin

        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))

        def decode_in_the_loop():
            for start in range(0, len(train), batch_size):
                encoded = [path.read_bytes() for path in paths[start : start + batch_size]]
                torch.from_numpy(np.stack([square(image, size) for image in encoded]))

        def read_the_cache():
            for start in range(0, len(train), batch_size):
                train.x.index_select(0, order[start : start + batch_size])

        decoding, reading = median_seconds(decode_in_the_loop), median_seconds(read_the_cache)
    return {
        "images": len(train),
        "first_load_seconds": round(build, 3),
        "decoding_seconds": round(decoding, 4),
        "cached_seconds": round(reading, 4),
        "ratio": round(decoding / reading, 1),
    }


def bench_device(device, images=51_200, batch_size=512):
    x = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8)
    part = Part(x, torch.arange(images) % 10, NORMALIZATION, AUGMENTATION)
    source = batches(part, batch_size, device)
    generator = torch.Generator(device).manual_seed(0)

    def epoch():
        for _ in source.epoch(generator):
            pass

    seconds = median_seconds(epoch, device)
    return {"images": images, "batch_size": batch_size, "images_per_second": round(images / seconds)}


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    hardware = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(
        json.dumps(
            {
                "benchmark": "input",
                "hardware": {"device": hardware, "cpu_cores": os.cpu_count()},
                "versions": {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "numpy": np.__version__,
                    "pillow": PIL.__version__,
                },
                "repeats": REPEATS,
                "cache": bench_cache(),
                "device": bench_device(device),
            }
        )
    )
