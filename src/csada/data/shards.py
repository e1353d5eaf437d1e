"""Tar shards as a data set: what `csada.data.folder` does with files, without unpacking them. Shards may be added later.

An image is named [part/]class/SHARD:MEMBER. Its content decides its part, as in a folder, so a new shard moves no image.
Each shard is listed and hashed once. Batches are drawn from the decoded cache, so an epoch is one permutation of all images,
not a shuffle within shards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from csada import tars
from csada.data.cache import Decoded, decode, seal, sealed
from csada.data.fetch import Progress
from csada.data.folder import Listing, Parts, arranged
from csada.data.splits import as_ids, hashed
from csada.data.store import entry
from csada.errors import InputError
from csada.files import printable
from csada.pixels import SUFFIXES
from csada.tars import VALIDATION, CutOff, Member


@dataclass(frozen=True)
class Shards:
    place: str
    where: dict[str, tuple[str, Member]]  # an image's name -> its shard, and where it is in it
    ids: dict[str, int]
    stamps: dict[str, list[Any]]
    cut: tuple[str, ...]  # what is said of shards that end too early

    def listing(self, validation: float = 0.1, seed: int = 0) -> Listing:
        found: Parts = {}
        for name in self.where:  # in the order of the shards, in which they are read
            first = name.split("/")[0] if name.count("/") == 2 else ""
            found.setdefault("validation" if first in VALIDATION else first, []).append(name)
        if (given := [part for part in found if part]) and ("" in found or not {"train", "test"} <= found.keys()):
            raise InputError(f"{self.place} has the parts {', '.join(given)}; all images need one, and train and test")
        ids = np.array([self.ids[name] for names in found.values() for name in names], np.uint64)
        return arranged(self.place, found, ids, validation, seed)

    def decode(self, names: Sequence[str], size: int, on_progress: Progress | None) -> Decoded:
        identity = ["shards", sorted(self.stamps.items()), hashed(["\n".join(names).encode()]).hex()]
        read = tars.reader()
        return decode(identity, lambda: [(name, partial(read, *self.where[name])) for name in names], size, on_progress)


def gathered(place: str, skip_bad: bool = False) -> Shards:
    where: dict[str, tuple[str, Member]] = {}
    ids: dict[str, int] = {}
    stamps, cut = {}, []
    for shard in tars.expanded(place):
        stamps[shard] = tars.stamp(shard)
        rows, why = _index(shard, stamps[shard])
        if why:
            if not skip_bad:
                raise CutOff(why)
            cut.append(f"{Path(shard).name}: cut off; the {len(rows):,} images before the cut are used")
        for name, offset, size, key in rows:
            if name in where:
                raise InputError(f"{shard}: {name} is there twice; each image needs a name of its own")
            where[name], ids[name] = (shard, Member(name, offset, size)), key
    if not where:
        raise InputError(f"{place} holds no images; a shard has KEY.jpg and KEY.cls, or CLASS/KEY.jpg")
    return Shards(place, where, ids, stamps, tuple(cut))


Row = tuple[str, int, int, int]  # name, offset, size, id


def _index(shard: str, known_by: list[Any]) -> tuple[list[Row], str]:
    """The images of a shard, once; and why it ends too early, if it does."""
    place = shard if tars.is_remote(shard) else str(Path(shard).resolve())
    file = entry(["shard", place, known_by]).with_suffix(".ids")
    if (known := _kept(file)) is not None:
        return known
    images: list[tuple[Member, int]] = []
    labels: dict[str, str] = {}
    why = ""
    try:
        for member, content in tars.walk(shard):
            if member.name.lower().endswith(tars.LABEL):
                labels[member.name[: -len(tars.LABEL)]] = content.decode(errors="replace").strip()
            else:
                images.append((member, int(as_ids(hashed([content]))[0])))
    except CutOff as error:
        why = str(error)
        if images and _key(images[-1][0].name) not in labels and "/" not in images[-1][0].name:
            images.pop()  # its class is behind the cut
    named = [(_named(shard, member, labels), member.offset, member.size, key) for member, key in images]
    rows = [row for row in named if row[0]]
    with suppress(OSError):  # a cache that cannot be written costs time alone
        seal(file, json.dumps([rows, why]).encode())
    return rows, why


def _kept(file: Path) -> tuple[list[Row], str] | None:
    """None where there is none, or something else: a hash can be computed by anybody."""
    try:
        rows, why = json.loads(sealed(file) or b"0")
        found = [(str(name), int(offset), int(size), int(key)) for name, offset, size, key in rows]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    good = all(name.count("/") in (1, 2) and min(row) >= 0 and max(row) < 1 << 64 for name, *row in found)
    return (found, str(why)) if good else None


def _key(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}".lstrip("/")


def _named(shard: str, member: Member, labels: dict[str, str]) -> str:
    """[part/]class/SHARD:MEMBER; nothing for a file that goes with an image, such as KEY.mask.png."""
    *folders, file = [each for each in member.name.split("/") if each not in ("", ".", "..")]
    part = tars.part_of(shard)
    if not part and folders and folders[0] in tars.PARTS:
        part, folders = folders[0], folders[1:]
    label = labels.get(_key(member.name))
    if label is not None:
        if "." + file.partition(".")[2].lower() not in SUFFIXES:
            return ""
    elif folders:
        label = folders[-1]
    else:
        raise InputError(
            f"{shard}: {printable(file)} has no class; add {_key(member.name)}.cls, or put it into a folder"
        )
    if not label or "/" in label or printable(label) != label or len(label) > 255:
        raise InputError(f"{shard}: the class of {printable(file)} is {printable(label)[:80]!r}; give it a plain name")
    inside = printable(member.name).replace("/", ":")
    return f"{part}/{label}/{Path(shard).name}:{inside}".lstrip("/")
