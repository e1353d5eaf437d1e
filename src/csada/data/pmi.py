"""Pharmacy medication images (PMI): bottles of pills from above, 20 products, and the pharmacist's costs.

The table is the paper's appendix. The pictures are read from the public release, <part>/<NDC>/<image>, or from its
mirror on the Hugging Face hub. As in the paper: the middle square, 224 pixels, random crops and right angles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

import torch

from csada.costs import CostMatrix, did_you_mean
from csada.data.augment import Augmentation, Normalization
from csada.data.cache import Decoded, Encoded, decode, decode_files, stamp
from csada.data.fetch import Progress, places
from csada.data.splits import PARTS, Part, Splits, scaled
from csada.errors import InputError
from csada.files import StrPath
from csada.pixels import SUFFIXES
from csada.rows import read_rows


class Product(NamedTuple):
    """A medication: what its pills look like, and how many pictures of it each part has."""

    ndc: str
    name: str
    shape: Literal["round", "oval", "capsule"]
    colour: Literal["white", "brown", "orange", "yellow"]
    imprint: str  # a semicolon separates texts
    size: int  # millimetres, the longer side
    train: int
    validation: int
    test: int
    scored: int  # 1: a line across its back; this and what follows is not the paper's but ours
    dome: float  # slope of the face at its rim, before the bevel
    gloss: float


PRODUCTS = tuple(
    Product._make([*row[:5], *map(int, row[5:10]), *map(float, row[10:])])
    for line, row in read_rows(Path(__file__).with_name("pmi.csv"))
    if line > 1  # below the header
)
CLASSES = tuple(product.ndc for product in PRODUCTS)

NORMALIZATION = Normalization(mean=(0.4923, 0.4027, 0.3429), std=(0.1905, 0.2175, 0.2434), scale=255)
AUGMENTATION = Augmentation(zoom=(0.8, 1.0), right_angles=True)
SIZE = 224

FOLDERS = {"train": "train", "validation": "valid", "test": "test"}
HUB = "gwenxin/pills_inside_bottles"


def pmi_costs() -> CostMatrix:
    """Four critical pairs cost 10, 10, 10 and 8, every other mistake 1."""
    return CostMatrix.preset("pmi")


def load(
    data_dir: StrPath | None = None,
    scale: float = 1.0,
    seed: int = 0,
    source: str = "folder",
    on_progress: Progress | None = None,
) -> Splits:
    """`source="folder"` reads the public release in `data_dir`, `source="hub"` the mirror's Parquet files.

    Parquet files are looked for in `data_dir` first and downloaded when they are not there.
    """
    if source == "folder":
        where = _release(data_dir)
        decoded = decode_files(where, _pictures(where), SIZE, on_progress)
    elif source == "hub":
        files = _parquet_files(data_dir)
        where, decoded = files[0].parent, read_parquet(files, on_progress)
    else:
        raise InputError(f"unknown source {source!r}{did_you_mean(source, ['folder', 'hub'])}")
    if decoded.skipped:
        raise InputError(f"{where}: {decoded.skipped[0]}; download it again ({len(decoded.skipped)} unreadable in all)")
    train, validation, test = (_part(decoded, part, where) for part in PARTS)
    return scaled(Splits(train, validation, test, CLASSES, "pmi"), scale, seed)


def _part(decoded: Decoded, part: str, where: Path) -> Part:
    """Images are named <part>/<NDC>/..., the parts one after the other."""
    names = [name.split("/") for name in decoded.names]
    rows = [i for i, name in enumerate(names) if name[0] == FOLDERS[part]]
    if absent := set(CLASSES) - {names[i][1] for i in rows}:
        raise InputError(
            f"{where}: part {FOLDERS[part]!r} has no pictures of {len(absent)} of the 20 products ({min(absent)} is one); "
            "the download is incomplete, get it again"
        )
    y = torch.tensor([CLASSES.index(names[i][1]) for i in rows])
    x = decoded.images[rows[0] : rows[-1] + 1]  # a view: the file stays mapped
    return Part(x, y, NORMALIZATION, AUGMENTATION if part == "train" else Augmentation())


# -- the public release ----------------------------------------------------------------------------


def _release(data_dir: StrPath | None) -> Path:
    for place in places(data_dir):
        for root in (place, place / "NLM20", place / "pmi", place / "pmi" / "NLM20"):
            if any((root / "train" / ndc).is_dir() for ndc in CLASSES):
                return root
    looked = ", ".join(str(place) for place in places(data_dir))
    raise InputError(
        f"the PMI pictures were not found in {looked}; download them from "
        "https://deepblue.lib.umich.edu/data/concern/data_sets/6d56zw997 and unpack them so that one of these folders "
        '(data_dir=, or $CSADA_DATA, names yours) has NLM20/{train,valid,test}/<NDC>/, or use source="hub"; '
        'without them, the data set "pills" draws bottles of the same products'
    )


def _pictures(root: Path) -> list[str]:
    """<part>/<NDC>/<file> of every picture, the parts in order."""
    return [
        f"{folder}/{_known(path.parent.name, path)}/{path.name}"
        for folder in FOLDERS.values()
        for path in sorted((root / folder).glob("*/*"))
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]


def _known(ndc: str, where: Path) -> str:
    if ndc not in CLASSES:
        raise InputError(f"{where}: {ndc!r} is none of the 20 products{did_you_mean(ndc, CLASSES)}")
    return ndc


# -- the mirror ------------------------------------------------------------------------------------


def _parquet_files(data_dir: StrPath | None) -> list[Path]:
    for folder in places(data_dir):
        for inner in (folder, folder / "data", folder / "pmi"):
            if found := sorted(inner.glob("train*.parquet")):
                return sorted(found[0].parent.glob("*.parquet"))
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"no Parquet files of {HUB} in {', '.join(map(str, places(data_dir)))}, and huggingface_hub, which "
            "downloads them, is not installed: pip install 'csada[hub]'"
        ) from None
    folder = Path(snapshot_download(HUB, repo_type="dataset", allow_patterns="*.parquet"))
    return sorted(folder.rglob("*.parquet"))


def read_parquet(files: Sequence[Path], on_progress: Progress | None = None) -> Decoded:
    """Pictures of Parquet files named train*, valid* and test*, with columns image (bytes, path), ndc and id."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError("reading Parquet needs pyarrow, which is not installed: pip install 'csada[hub]'") from None

    def images() -> list[Encoded]:
        of_part = [(folder, path) for folder in FOLDERS.values() for path in files if path.name.startswith(folder)]
        return [image for folder, path in of_part for image in _rows(parquet.ParquetFile(path), folder, path)]

    return decode(["pmi", *([str(path.resolve()), *stamp(path)] for path in files)], images, SIZE, on_progress)


def _rows(file: Any, folder: str, path: Path) -> list[Encoded]:
    """The pictures of one file, read a row group at a time: threads that ask for neighbours share it."""
    lock = Lock()
    held: tuple[int, Any] = (-1, None)

    def read(group: int, row: int) -> bytes:
        nonlocal held
        with lock:
            if held[0] != group:
                held = group, file.read_row_group(group, columns=["image"]).column("image")
            return bytes(held[1][row].as_py()["bytes"])

    rows: list[Encoded] = []
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=["ndc", "id"]).to_pydict()
        for row, (ndc, number) in enumerate(zip(table["ndc"], table["id"], strict=True)):
            name = f"{folder}/{_known(str(ndc), path)}/{number}"
            rows.append((name, partial(read, group, row)))
    return rows
