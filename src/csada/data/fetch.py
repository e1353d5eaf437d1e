"""Where public data sets are on this machine, and how they get there: resumed downloads, checked before use."""

from __future__ import annotations

import hashlib
import http.client
import math
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from csada.errors import InputError, RunError
from csada.files import StrPath, regular, settled

Progress = Callable[[int, int], None]  # (done, total)

ATTEMPTS = 5  # connections tried in a row before giving up; each one continues where the last one broke
CHUNK = 1 << 18


@dataclass(frozen=True)
class RemoteFile:
    """A file as its publisher offers it."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Remote:
    """A public data set: the address in front of its files, and the folder under the data folder that takes them."""

    base_url: str
    folder: str
    files: tuple[RemoteFile, ...]


REMOTES = {
    "mnist": Remote(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        (
            RemoteFile("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            RemoteFile("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            RemoteFile("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            RemoteFile("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
    "cifar10": Remote(
        "https://www.cs.toronto.edu/~kriz/",
        ".",
        (RemoteFile("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),),
    ),
}


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "csada"


def places(data_dir: StrPath | None = None) -> list[Path]:
    """The folders in which data is looked for, in this order; the first is also where downloads go."""
    given = [folder for folder in (data_dir, os.environ.get("CSADA_DATA")) if folder]
    return [*(Path(folder).expanduser() for folder in given), user_cache()]


def missing(name: str, expected: str, data_dir: StrPath | None) -> InputError:
    """The error for a data set that is nowhere: what goes where, and the command that brings it."""
    looked = ", ".join(str(place) for place in places(data_dir))
    return InputError(
        f"{name} was not found in {looked}; put {expected} into one of them (data_dir=, or $CSADA_DATA, names yours), "
        f"or download it with `csada data fetch {name}`"
    )


def fetch(
    name: str,
    data_dir: StrPath | None = None,
    on_progress: Progress | None = None,
    base_url: str | None = None,
) -> Path:
    """Downloads a public data set and returns its folder. Files that are there and intact are not fetched again."""
    if name not in REMOTES:
        raise InputError(f"nothing to download for {name!r}; what can be fetched: {', '.join(sorted(REMOTES))}")
    remote, before = REMOTES[name], 0
    folder, total = places(data_dir)[0] / remote.folder, sum(file.size for file in remote.files)
    for file in remote.files:

        def report(done: int, _: int = 0, before: int = before) -> None:
            if on_progress is not None:
                on_progress(before + done, total)

        path = folder / file.name
        if not (path.is_file() and _md5(path) == file.md5):
            download((base_url or remote.base_url).rstrip("/") + "/" + file.name, path, file.md5, report, file.size)
        before += file.size
        report(file.size)
    return folder


def download(url: str, path: Path, md5: str, on_progress: Progress | None = None, size: float = math.inf) -> None:
    """One file, by way of `<name>.part`, which a later call continues; it takes its name once its checksum is right."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(ATTEMPTS):
            if _continue(url, part, on_progress, size):
                break
        else:
            kept = f"{part.stat().st_size:,} bytes are kept in {part}" if part.exists() else "nothing came"
            raise RunError(
                f"{url}: the connection broke {ATTEMPTS} times; {kept}, run the same command again to continue"
            )
        if (found := _md5(part)) != md5:
            part.unlink()
            raise RunError(f"{url}: its checksum is {found}, not {md5}; it was removed: run the same command again")
        settled(part, path)
    except (urllib.error.URLError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or f"the server's answer is no HTTP ({type(error).__name__})"
        raise RunError(f"{url} cannot be fetched: {why}; check the network, then run again") from None
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"{part} cannot be written: {why}; free the space or name another folder") from None


def _continue(url: str, part: Path, on_progress: Progress | None, size: float) -> bool:
    """Appends to `part` what the server still has; False when the connection broke before the end."""
    have = regular(part).stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # there is nothing after what we have: the checksum decides
            return True
        raise
    except (ConnectionError, TimeoutError):  # it closed without an answer
        return False
    with response:
        if response.status != 206:  # a server that cannot continue sends all of it again
            have = 0
        told = response.headers.get("Content-Length") or ""
        total = have + (int(told) if told.isdecimal() and len(told) < 19 else 0)
        with part.open("ab" if have else "wb") as out:
            try:
                while chunk := response.read(CHUNK):
                    if have + len(chunk) > size:
                        part.unlink()
                        raise RunError(f"{url} sends more than the {size:,} bytes that it should have; it was not kept")
                    out.write(chunk)
                    have += len(chunk)
                    if on_progress is not None:
                        on_progress(have, total)
            except (http.client.HTTPException, ConnectionError, TimeoutError):
                return False
    return have >= total


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
