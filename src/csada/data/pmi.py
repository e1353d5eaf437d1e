"""Pharmacy medication images (PMI): bottles of pills from above, 20 products, and the pharmacist's costs.

The table is the paper's appendix. The pictures are read from the public release, <part>/<NDC>/<image>, or from its
mirror on the Hugging Face hub. As in the paper: the middle square, 224 pixels, random crops and right angles.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

import torch

from csada.costs import CostMatrix, did_you_mean
from csada.data.augment import Augmentation, Normalization
from csada.data.cache import Decoded, Encoded, decode, decode_files
from csada.data.fetch import Progress, places
from csada.data.splits import Part, Splits, scaled
from csada.errors import InputError


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


PRODUCTS: tuple[Product, ...] = (
    Product("00378-0208", "Furosemide 20 MG Oral Tablet", "round", "white", "M2", 6, 602, 199, 200),
    Product("00378-3855", "Escitalopram 5 MG Oral Tablet", "round", "white", "M;EC5", 6, 129, 42, 42),
    Product("00591-0461", "Glipizide 10 MG Oral Tablet", "round", "white", "Watson;461", 10, 148, 48, 48),
    Product("16729-0020", "pioglitazone 15 MG Oral Tablet", "round", "white", "P;15", 5, 258, 84, 85),
    Product("16729-0168", "Escitalopram 5 MG Oral Tablet", "round", "white", "5", 5, 129, 42, 42),
    Product(
        "50111-0434", "Trazodone Hydrochloride 100 MG Oral Tablet", "round", "white", "PLIVA;434", 11, 601, 199, 200
    ),
    Product("53489-0156", "Allopurinol 100 MG Oral Tablet", "round", "white", "MP;71", 10, 600, 200, 200),
    Product("53746-0544", "Primidone 50 MG Oral Tablet", "round", "white", "AN;44", 6, 97, 31, 32),
    Product("57664-0377", "tramadol hydrochloride 50 MG Oral Tablet", "capsule", "white", "377", 13, 601, 199, 200),
    Product("62037-0831", "24 HR metoprolol succinate 50 MG Extended", "round", "white", "831", 9, 600, 200, 200),
    Product("62037-0832", "24 HR metoprolol succinate 100 MG Extended", "round", "white", "832", 10, 601, 200, 200),
    Product(
        "64380-0803", "Ranitidine 150 MG Oral Tablet (Strides Pharma)", "round", "brown", "S;429", 10, 548, 181, 182
    ),
    Product(
        "65162-0253",
        "Ranitidine 150 MG Oral Tablet (Amneal Pharmaceuticals)",
        "round",
        "orange",
        "IP;253",
        9,
        557,
        184,
        185,
    ),
    Product("67253-0901", "Alprazolam 0.5 MG Oral Tablet", "oval", "yellow", "S901", 9, 497, 164, 165),
    Product("68382-0008", "lamotrigine 100 MG Oral Tablet", "round", "white", "ZC;80", 10, 423, 139, 140),
    Product("68382-0227", "Amiodarone hydrochloride 200 MG Oral Tablet", "round", "white", "ZE;65", 10, 120, 39, 39),
    Product("69097-0127", "Amlodipine 5 MG Oral Tablet", "round", "white", "127;C", 8, 600, 200, 200),
    Product("69097-0128", "Amlodipine 10 MG Oral Tablet", "round", "white", "128;C", 8, 600, 200, 200),
    Product("69315-0904", "Lorazepam 0.5 MG Oral Tablet", "round", "white", "EP;904", 5, 357, 118, 118),
    Product("69315-0905", "Lorazepam 1 MG Oral Tablet", "round", "white", "EP;905;1", 7, 325, 107, 108),
)
CLASSES = tuple(product.ndc for product in PRODUCTS)
PARTS = ("train", "validation", "test")

CRITICAL_PAIRS: dict[tuple[int | str, int | str], float] = {  # (truth, predicted): the pharmacist's cost
    ("50111-0434", "00591-0461"): 10.0,
    ("53489-0156", "68382-0227"): 10.0,
    ("53746-0544", "00378-0208"): 10.0,
    ("68382-0227", "53489-0156"): 8.0,
}

NORMALIZATION = Normalization(mean=(0.4923, 0.4027, 0.3429), std=(0.1905, 0.2175, 0.2434), scale=255)
AUGMENTATION = Augmentation(zoom=(0.8, 1.0), right_angles=True)
SIZE = 224

FOLDERS = {"train": "train", "validation": "valid", "test": "test"}
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
HUB = "gwenxin/pills_inside_bottles"


def pmi_costs() -> CostMatrix:
    """Four critical pairs cost 10, 10, 10 and 8, every other mistake 1."""
    return CostMatrix.preset("pmi")


def load(
    data_dir: str | os.PathLike[str] | None = None,
    scale: float = 1.0,
    seed: int = 0,
    source: str = "folder",
    on_progress: Progress | None = None,
) -> Splits:
    """`source="folder"` reads the public release in `data_dir`, `source="hub"` the mirror's Parquet files.

    Parquet files are looked for in `data_dir` first and downloaded when they are not there.
    """
    if source == "folder":
        root = _release(data_dir)
        decoded = decode_files(root, _pictures(root), SIZE, on_progress)
        where = str(root)
    elif source == "hub":
        files = _parquet_files(data_dir)
        decoded = read_parquet(files, on_progress)
        where = str(files[0].parent)
    else:
        raise InputError(f"unknown source {source!r}{did_you_mean(source, ['folder', 'hub'])}")
    if decoded.skipped:
        raise InputError(f"{where}: {decoded.skipped[0]}; download it again ({len(decoded.skipped)} unreadable in all)")
    return scaled(_splits(decoded, where), scale, seed)


def _splits(decoded: Decoded, where: str) -> Splits:
    """Images named <part>/<NDC>/..., the parts one after the other."""
    names = [name.split("/")[:2] for name in decoded.names]
    parts = {}
    for part, folder in FOLDERS.items():
        rows = [i for i, (p, _) in enumerate(names) if p == folder]
        if absent := set(CLASSES) - {names[i][1] for i in rows}:
            raise InputError(
                f"{where}: part {folder!r} has no pictures of {len(absent)} of the 20 products ({min(absent)} is one); "
                "the download is incomplete, get it again"
            )
        y = torch.tensor([CLASSES.index(names[i][1]) for i in rows])
        x = decoded.images[rows[0] : rows[-1] + 1]  # a view: the file stays mapped
        parts[part] = Part(x, y, NORMALIZATION, AUGMENTATION if part == "train" else Augmentation())
    return Splits(parts["train"], parts["validation"], parts["test"], CLASSES, "pmi")


# -- the public release ----------------------------------------------------------------------------


def _release(data_dir: str | os.PathLike[str] | None) -> Path:
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


def _parquet_files(data_dir: str | os.PathLike[str] | None) -> list[Path]:
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
        return [
            image
            for folder in FOLDERS.values()
            for path in files
            if path.name.startswith(folder)
            for image in _rows(parquet.ParquetFile(path), folder, path)
        ]

    stats = [(path, path.stat()) for path in files]
    identity = ["pmi", *([str(path.resolve()), s.st_size, s.st_mtime_ns] for path, s in stats)]
    return decode(identity, images, SIZE, on_progress)


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
