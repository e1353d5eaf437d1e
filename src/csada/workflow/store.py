"""Nodes that share no folder exchange the files of their runs at a URL, through fsspec: each has its own copy of the folder.

    pull   fetches what is missing here, and what is another version there than the one last exchanged
    push   uploads what is new or changed here; what says that a run is done comes last

A subfolder `.csada` is scratch: checkpoints and progress of the runs beside it. It alone is removed at one side after it
was removed at the other. Locks hold on one machine only, so two drivers may do the same run twice. Its files have the same
names both times, and the first one to be done stays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any
from uuid import uuid4

from csada.bounds import check
from csada.errors import InputError, RunError
from csada.files import TEMPORARY, printable, whole
from csada.folders import CONFIG, LOCK, OWN, locked
from csada.reading import read_json, write_json
from csada.tars import is_remote, remote, shown
from csada.workflow.runs import identity

INDEX = f"{OWN}/store"  # what was exchanged, by name: [size here, time here, version there]
DONE = "result.json"
VERSION = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")  # what file systems have, best first
ANSWER = 30  # seconds until a store has answered for the first time
AT_ONCE = 16  # files


@dataclass(frozen=True)
class Store:
    """A folder, under the same path on every node, and the URL with the same files.

    names: what of the folder is exchanged beside its own scratch, as the first parts of paths; by default all.
    """

    url: str
    root: Path
    names: tuple[str, ...] = ()
    known: dict[str, list[Any]] = field(default_factory=dict, compare=False, repr=False)  # if the index is replaced too

    def __post_init__(self) -> None:
        if not is_remote(self.url):
            raise InputError(
                f"--store {self.url} is no URL; write s3://BUCKET/FOLDER, gs://..., sftp://... or file:///..."
            )

    def __reduce__(self) -> Any:  # what is known of this folder goes to no node
        return Store, (self.url, self.root, self.names)

    def __str__(self) -> str:
        return shown(self.url)

    @contextmanager
    def mirrored(self) -> Iterator[None]:
        """For a whole command."""
        self.pull()
        yield
        self.push()

    def pull(self, *files: Path, only: bool = False) -> int:
        """How many files are there. files: progress of runs, whose scratch alone is fetched. only: these files alone."""
        with self._exchange() as (there, base, known):
            found, wanted = self._listed(there, base), self._wanted(files, only)

            def fetch(name: str) -> None:
                size, target = found[name][0], self.root / name
                check("weights", size, f"{self}: {printable(name)} has {size:,} bytes")
                if target.parent.resolve() != (self.root.resolve() / name).parent:
                    raise RunError(f"{target.parent} is a link, or behind one; remove it")
                with suppress(FileNotFoundError), whole(target) as partial:
                    there.get_file(f"{base}/{name}", str(partial))
                    about = partial.stat()
                    if about.st_size != size:
                        raise FileNotFoundError  # by now it is another one, for the next time
                    known[name] = [size, about.st_mtime_ns, found[name]]

            for name in known.keys() - found.keys():
                del known[name]
                if _scratch(name):
                    (self.root / name).unlink(missing_ok=True)
            old = [name for name in found if name in known and known[name][2] == found[name]]
            kept = {name for name in old if _scratch(name) or (self.root / name).is_file()}  # scratch: removed here
            _each(fetch, filter(wanted, found.keys() - kept), there)
            return len(found)

    def push(self, *files: Path) -> None:
        """files: progress of runs, whose scratch alone is uploaded; by default everything."""
        with self._exchange() as (there, base, known):
            here, wanted = self._here(), self._wanted(files)
            new = {name for name in here if wanted(name) and here[name] != known.get(name, [])[:2]}
            if done := {name for name in new if name.endswith(f"/{DONE}")}:
                found = self._listed(there, base)
                others = tuple(n.removesuffix(DONE) for n in done if n in found and [found[n]] != known.get(n, [])[2:])
                new = {name for name in new if not name.startswith(others)}  # the first one to be done stays

            def upload(name: str) -> None:
                try:
                    _put(there, self.root / name, f"{base}/{name}")
                except FileNotFoundError:
                    if (self.root / name).exists():
                        raise  # else it was removed meanwhile

            _each(upload, new, there)
            found = self._listed(there, base) if new else {}
            known.update({name: [*here[name], found[name]] for name in new & found.keys()})
            for name in [name for name in known if wanted(name) and _scratch(name) and name not in here]:
                with suppress(FileNotFoundError):
                    there.rm_file(f"{base}/{name}")
                del known[name]

    @contextmanager
    def _exchange(self) -> Iterator[tuple[Any, str, dict[str, list[Any]]]]:
        index = self.root / INDEX / f"{identity(self.url)}.json"
        try:
            there, base = _opened(self.url)
            with locked(index.parent, wait=True):  # of this machine
                if index.exists():
                    self.known.clear()
                    self.known.update(read_json(index, dict))
                before = dict(self.known)
                try:
                    yield there, base, self.known
                finally:
                    if self.known != before:
                        write_json(index, self.known)
        except (InputError, RunError):
            raise
        except Exception as error:  # file systems share no base
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RunError(
                f"{self} and {self.root} cannot exchange files: {' '.join(why.split())[:300]}; correct that, and the same "
                "command resumes"
            ) from None

    def _ours(self, name: str) -> bool:
        """Neither a lock, nor half written, nor the index, nor a part of the folder that is not exchanged."""
        parts = name.split("/")
        half = TEMPORARY.fullmatch(parts[-1]) or any(part.endswith(OWN) and part != OWN for part in parts)
        chosen = not self.names or parts[0] in (OWN, *self.names)
        return chosen and not (half or name.endswith(LOCK) or f"{name}/".startswith(f"{INDEX}/"))

    def _wanted(self, files: tuple[Path, ...], only: bool = False) -> Callable[[str], bool]:
        mine = {file.relative_to(self.root).as_posix() for file in files}
        near = {"", *map(_scratch, mine)}
        return lambda name: name in mine if only else not mine or _scratch(name) in near

    def _here(self) -> dict[str, list[int]]:
        found = {}
        for folder, inner, names in os.walk(self.root):
            before = "" if (relative := Path(folder).relative_to(self.root).as_posix()) == "." else f"{relative}/"
            inner[:] = [each for each in inner if self._ours(before + each)]
            for name in names:
                with suppress(FileNotFoundError):
                    about = os.lstat(Path(folder, name))
                    if S_ISREG(about.st_mode) and self._ours(before + name):
                        found[before + name] = [about.st_size, about.st_mtime_ns]
        return found

    def _listed(self, there: Any, base: str) -> dict[str, list[Any]]:
        """The version of each file that is there."""
        there.invalidate_cache()
        every, start = there.find(base, detail=True), f"{base.rstrip('/')}/"
        check("stored", len(every), f"{self} holds {len(every):,} files")
        plain = [path for path, about in every.items() if about["type"] == "file" and not about.get("islink")]
        found = {path.removeprefix(start): _version(every[path]) for path in plain if path.startswith(start)}
        for name in found:
            if "\0" in name or not all(part.strip(".") for part in name.split("/")):
                raise RunError(f"{self} holds a file {printable(name)!r}, which no folder can hold; remove it")
        return {name: version for name, version in found.items() if self._ours(name)}


@lru_cache
def _opened(url: str) -> tuple[Any, str]:
    """Libraries may ask a silent address for many minutes."""
    answer: Future[tuple[Any, str]] = Future()

    def ask() -> None:
        try:
            there, base = remote(url)
            there.exists(base)
            answer.set_result((there, base))
        except BaseException as error:  # whatever it is, whoever waits gets it
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(ANSWER)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {ANSWER} seconds") from None


def _put(there: Any, local: Path, target: str) -> None:
    """A file that somebody reads there is whole."""
    if there.async_impl:  # those of object stores, which show a file when it is
        there.put_file(str(local), target)
    else:
        folder, _, name = target.rpartition("/")
        there.makedirs(folder, exist_ok=True)
        there.put_file(str(local), half := f"{folder}/.{name}.{uuid4().hex[:12]}.tmp")
        there.mv(half, target)


def _each(work: Callable[[str], None], names: Iterable[str], there: Any) -> None:
    """Several at a time where a library can; what says that others are complete comes after them."""
    rounds: dict[str, list[str]] = {"": [], CONFIG: [], DONE: []}
    for name in names:
        rounds.get(name.rpartition("/")[2], rounds[""]).append(name)
    with ThreadPoolExecutor(AT_ONCE if there.async_impl else 1) as pool:
        for each in rounds.values():
            list(pool.map(work, each))


def _scratch(name: str) -> str:
    """The subfolder `.csada` that it is in."""
    before, own, _ = f"/{name}".partition(f"/{OWN}/")
    return before + own if own else ""


def _version(about: dict[str, Any]) -> list[Any]:
    return [about["size"], str(next((about[key] for key in VERSION if about.get(key)), None))]
