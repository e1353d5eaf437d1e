"""Images in tar files (shards, as WebDataset writes them): read where they lie, never unpacked to the disk. No PyTorch.

    000123.jpg + 000123.cls     the class's name or number is the text of the second file
    cat/000123.jpg              or the folder is the class; train/, valid/ and test/ before it, or before a key, are parts

Only plain files count: links, devices and folders are passed over. A place is a path or an address that fsspec knows.
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any

from csada.bounds import check, most
from csada.errors import InputError, explained
from csada.files import printable, regular
from csada.pixels import SUFFIXES

SUFFIX, LABEL = ".tar", ".cls"
LONGEST = 1 << 16  # bytes of a class's name, or of a header's extension
VALIDATION = ("valid", "validation", "val", "dev")
PARTS = ("train", *VALIDATION, "test")  # folders that are parts


class CutOff(InputError):
    """A shard that ends too early."""


@dataclass(frozen=True)
class Member:
    """A plain file in a shard, and where its content is."""

    name: str
    offset: int
    size: int


class _Header(tarfile.TarInfo):
    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) and self.size > LONGEST:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


def is_remote(place: str) -> bool:
    return "://" in place


def is_shards(place: str) -> bool:
    """Whether it names tar files: one, a pattern, an address, or a folder that holds some and no class folders of images."""
    if is_remote(place):
        return True
    return bool(_in_folder(Path(place))) if os.path.isdir(place) else place.lower().endswith(SUFFIX)


def expanded(place: str) -> list[str]:
    """The shards, sorted by name."""
    if is_remote(place):
        files, path = remote(place)
        folder = not (glob.has_magic(path) or path.lower().endswith(SUFFIX))
        patterns = [f"{path}/{part}*{SUFFIX}" for part in ("", *(f"{part}/" for part in PARTS))] if folder else [path]
        with _told(place):
            found = [
                each for pattern in patterns for each in (files.glob(pattern) if glob.has_magic(pattern) else [path])
            ]
        shards = [files.unstrip_protocol(each) for each in found]
    elif os.path.isdir(place):
        shards = _in_folder(Path(place))
    else:
        shards = glob.glob(place) if glob.has_magic(place) and not os.path.exists(place) else [place]
    if not shards:
        raise InputError(
            f"there is no file {place}; give a tar file, a folder of them or a pattern such as photos-*.tar"
        )
    check("shards", len(shards), f"{place} names {len(shards):,} files")
    return sorted(shards)


def _in_folder(folder: Path) -> list[str]:
    inner = (folder, *(folder / part for part in PARTS))
    return [str(path) for each in inner for path in each.glob(f"*{SUFFIX}") if not path.name.startswith(".")]


def part_of(place: str) -> str:
    """The part whose folder the shard is in; nothing where it is in none."""
    name = place.rstrip("/").split("/")[-2:-1]
    return name[0] if name and name[0] in PARTS else ""


def stamp(place: str) -> list[Any]:
    """What changes when the shard changes."""
    with _told(place):
        if is_remote(place):
            files, path = remote(place)
            about = files.info(path)
            return [about.get("size"), *(str(about.get(key)) for key in ("ETag", "mtime", "LastModified", "created"))]
        stat = regular(place).stat()
        return [stat.st_size, stat.st_mtime_ns]


def walk(place: str, labels: bool = True) -> Iterator[tuple[Member, bytes]]:
    """The images, and the files that name their classes, in their order; CutOff where the shard ends too early."""
    end, count, whole = 0, 0, False
    with _told(place), _opened(place) as file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:", tarinfo=_Header)  # noqa: SIM115 - the file is closed
            for info in tar:
                tar.members = []  # type: ignore[attr-defined]  # else it remembers them all
                count, end = count + 1, tar.offset
                check("members", count, f"{printable(place)} has {count:,} files")
                if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                    continue
                suffix = os.path.splitext(info.name)[1].lower()
                if suffix not in SUFFIXES and not (labels and suffix == LABEL):
                    continue
                largest = most("image") if suffix in SUFFIXES else LONGEST
                if info.size > largest:
                    raise InputError(
                        f"{place}: {printable(info.name)} has {info.size:,} bytes; at most {largest:,} are read"
                    )
                file.seek(info.offset_data)
                content = file.read(info.size)
                if len(content) < info.size:
                    break
                yield Member(info.name.removeprefix("./"), info.offset_data, info.size), content
            else:
                file.seek(end)
                whole = file.read(512) == bytes(512)
        except (tarfile.TarError, EOFError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            if not count:
                raise InputError(f"{place} is no tar file ({error}); a shard is one that is not compressed") from None
    if not whole:
        raise CutOff(f"{place} is cut off after {count:,} files; copy it again, or use what is there with --skip-bad")


def reader(ahead: int = 1 << 23) -> Callable[[str, Member], bytes]:
    """Reads what is in a shard; a remote one so many bytes at a time, which threads that ask for neighbours share."""
    busy, held = Lock(), deque[tuple[str, int, bytes]](maxlen=2)  # blocks; a late thread may still need the one before

    def read(place: str, member: Member) -> bytes:
        if not is_remote(place):
            with regular(place).open("rb") as file:
                file.seek(member.offset)
                return file.read(member.size)
        end = member.offset + member.size
        with busy:
            for shard, start, block in held:
                if shard == place and start <= member.offset and end <= start + len(block):
                    return block[member.offset - start : end - start]
            files, path = remote(place)
            held.append((place, member.offset, files.cat_file(path, member.offset, max(end, member.offset + ahead))))
            return bytes(held[-1][2][: member.size])

    return read


def _opened(place: str) -> AbstractContextManager[IO[bytes]]:
    if not is_remote(place):
        return regular(place).open("rb")
    files, path = remote(place)
    opened: AbstractContextManager[IO[bytes]] = files.open(path, "rb")
    return opened


def _told(place: str) -> AbstractContextManager[None]:
    return explained(f"{shown(place)} cannot be read")


def remote(place: str) -> tuple[Any, str]:
    """Its file system, and the path there."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"{shown(place)} needs fsspec: pip install fsspec, or copy the files here") from None
    try:
        files, path = url_to_fs(place)
    except (ImportError, ValueError) as error:  # an unknown protocol, or its library is not installed
        raise InputError(f"{shown(place)} cannot be read: {error}") from None
    return files, path


def shown(url: str) -> str:
    """Without a password."""
    return printable(re.sub("//[^/@]*@", "//", url))
