"""Every command that writes is killed at random moments and started again: what it leaves must be as if nobody had.

    python tests/deaths/run.py --kills 200 --seed 1       # or: make deaths
    python tests/deaths/run.py --kills 3 --commands fit train --others

Half of the kills come at a random moment, half at a random change of a file. In between, every file and folder that the
command makes is what it was or what it will be. After the second start all files are those of an undisturbed run, bit by bit,
but for times and what hashes them. --others: also full disks, folders that may not be written to, and two at once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import forked
import good
from commands import COMMANDS, NOTHING, Command

SECONDS = 600  # that a command may take: on a busy machine ten times what it needs
ENDS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
SIGNALS = (signal.SIGKILL,) * 3 + (signal.SIGTERM, signal.SIGINT)
TIMES = {
    "seconds",
    "epoch_seconds",
    "time",
    "when",
    "date",
    "judged",
    "started",
    "sha256",
    "seconds_per_epoch",
    "fingerprint",
}
WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "shutil.copyfile"}
TEMPORARY = re.compile(r"\..+\.tmp|\..+\.csada")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?Z?)?( UTC)?|\b\d+(\.\d+)? (s|seconds)\b")
FREE = 3  # blocks of a full disk that are free

State = dict[str, str]  # path -> hash of its content


@dataclass
class Undisturbed:
    """How a command ends when nobody interrupts it."""

    code: int
    seconds: float
    writes: int
    before: State
    after: State


@dataclass
class Tally:
    """Of one command."""

    kills: Counter[str] = field(default_factory=Counter)  # by signal
    at_a_write: int = 0
    left_over: int = 0  # killed runs that left a temporary file, which the next one removed
    wrong: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # what else was tried, and how it ended


def content(path: Path, is_log: bool = False) -> str:
    """A hash of what the file says, but for times."""
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        lines = [_timeless(_parsed(line)) for line in data.splitlines() if line.strip()]
        data = json.dumps(
            sorted({json.dumps(line) for line in lines if line is not None}) if is_log else lines
        ).encode()
    elif path.suffix == ".json":
        data = json.dumps(_timeless(json.loads(data)), sort_keys=True).encode()
    elif path.suffix in (".html", ".md", ".xml"):
        data = MOMENT.sub("MOMENT", data.decode(errors="replace")).encode()
    return hashlib.sha256(data).hexdigest()


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # half written


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in TIMES}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def state(folder: Path, command: Command) -> State:
    """All files, but the locks and checkpoints of unfinished runs, caches and what was printed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        hidden = any(part == ".csada" for part in path.parts) or name.split("/")[0] in ("cache", "home")
        if path.is_file() and not hidden and name not in (*forked.OUTPUTS,) and path.name != "starts.log":
            found[name] = content(path, name == command.log)
    return found


def temporary(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob(".*") if TEMPORARY.fullmatch(path.name)]


def under(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}/") for place in places)


def fresh(template: Path, folder: Path) -> Path:
    for place in (folder, ray := folder.with_name(forked.RAY)):
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, folder)
    ray.mkdir()
    ray.chmod(0o777)
    (folder / "out").mkdir()
    return folder


def at_write(number: int, what: Callable[[], None]) -> Callable[[], None]:
    """At the number-th time that this process changes a file or a folder, do that."""

    def begin() -> None:
        seen = 0

        def hook(event: str, given: tuple[Any, ...]) -> None:
            nonlocal seen
            if event not in WRITES or (
                event == "open" and not (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            ):
                return
            if event == "open" and not isinstance(given[0], str):
                return
            seen += 1
            if seen == number:
                what()

        sys.addaudithook(hook)

    return begin


def undisturbed(command: Command, template: Path, folder: Path) -> Undisturbed:
    """Two runs, which must agree."""
    before = state(fresh(template, folder), command)
    counter = folder.parent / "writes"
    counter.write_bytes(b"")

    def count() -> None:
        def hook(event: str, given: tuple[Any, ...]) -> None:
            if event in WRITES and (
                event != "open"
                or (isinstance(given[0], str) and (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            ):
                os.write(file, b".")

        file = os.open(counter, os.O_WRONLY | os.O_APPEND)
        sys.addaudithook(hook)

    runs = []
    for prepare in (count, lambda: None):
        fresh(template, folder)
        begin = time.monotonic()
        code = finished(command, folder, prepare)
        runs.append((code, time.monotonic() - begin, state(folder, command)))
    (code, _, first), (again, seconds, after) = runs
    assert code == again and code in (0, 1, 3), (command.words, code, again, forked.printed(folder)[1])
    assert code == 0 or command.words.startswith(("check", "monitor")), (command.words, forked.printed(folder)[1])
    differing = [name for name in first.keys() | after.keys() if first.get(name) != after.get(name)]
    assert not differing, f"{command.words}: two undisturbed runs differ in {differing}"
    assert not temporary(folder), f"{command.words} leaves {temporary(folder)}"
    shutil.rmtree(folder.with_name("expected"), ignore_errors=True)
    shutil.copytree(folder, folder.with_name("expected"))
    writes = counter.stat().st_size
    assert writes, f"{command.words} writes nothing"
    return Undisturbed(code, seconds, writes, before, after)


def finished(command: Command, folder: Path, before: Callable[[], None] = lambda: None) -> int | None:
    process = forked.start(command.words.split(), folder, before)
    code = forked.ended(process, SECONDS)
    if code is None:
        os.waitpid(process, 0)
    forked.end_children()
    return code


def death(command: Command, known: Undisturbed, template: Path, folder: Path, rng: Random, tally: Tally) -> None:
    """One kill that came before the end, and a second start."""
    number, shrinking = rng.choice(SIGNALS), 1.0
    by_write = rng.random() < 0.5
    for _ in range(100):
        fresh(template, folder)
        if by_write:
            place = rng.randint(1, known.writes)
            moment = f"change {place} of {known.writes}"
            begin = at_write(place, lambda: signal.raise_signal(number))
            process = forked.start(command.words.split(), folder, begin)
            code = forked.ended(process, SECONDS)
        else:
            delay = rng.uniform(0.01, max(0.02, shrinking * known.seconds))
            moment = f"{delay:.3f} of {known.seconds:.3f} s"
            process = forked.start(command.words.split(), folder)
            code = forked.ended(process, delay, number)
            if code is None:
                code = forked.ended(process, SECONDS)
        if code is None:
            os.waitpid(process, 0)
        forked.end_children()
        late = code == -signal.SIGTERM and not list(different(command, known, folder))  # while Python itself was ending
        if code != known.code and not late:
            break
        shrinking *= 0.8  # it had ended before
    else:
        raise AssertionError(f"{command.words}: {number.name} never ended it")
    tally.kills[number.name] += 1
    tally.at_a_write += by_write
    told = f"{number.name} at {moment}"
    error = forked.printed(folder)[1]
    if code != ENDS[number]:
        tally.wrong.append(f"{told}: the exit code {code}: {error.strip()[-300:]}")
    left = temporary(folder)
    if number == signal.SIGKILL:
        tally.left_over += bool(left)
    elif left:
        tally.wrong.append(f"{told}: left {left[0]}")
    said = error.strip().splitlines()[-1:] or ["csada: interrupted"]  # nothing, where it came before the command
    if number != signal.SIGKILL and ("Traceback" in error or not said[0].startswith("csada: interrupted")):
        tally.wrong.append(f"{told}: {error.strip()[-300:]}")
    tally.wrong += [f"{told}: {what}" for what in between(command, known, folder)]
    code = finished(command, folder)
    complete = (
        code == 2 and "is there already" in forked.printed(folder)[1] and not list(different(command, known, folder))
    )
    if code != known.code and not complete:
        tally.wrong.append(f"{told}: the second start ends with {code}: {forked.printed(folder)[1].strip()[-300:]}")
        return
    tally.wrong += [f"{told}, after the second start: {what}" for what in different(command, known, folder)]


def between(command: Command, known: Undisturbed, folder: Path) -> Iterator[str]:
    """What a killed run left that is neither as before nor finished."""
    try:
        now = state(folder, command)
    except ValueError as error:  # JSON
        yield f"corrupt: {error}"
        return
    for place in command.made:
        views = [{name: s[name] for name in s if under(name, (place,))} for s in (now, known.before, known.after)]
        if views[0] not in views[1:]:
            yield f"corrupt: {place} is neither the old nor the new one"
    expected = known.before.keys() | known.after.keys()
    for name in now:
        kept = under(name, command.made) or under(name, command.progress) or name == command.log
        if kept or any(TEMPORARY.fullmatch(part) for part in Path(name).parts):
            continue
        if name not in expected or now[name] != known.before.get(name):
            yield f"corrupt: {name} was changed"
    yield from (
        f"corrupt: {name} is gone" for name in known.before if name not in now and not under(name, command.made)
    )


def different(command: Command, known: Undisturbed, folder: Path) -> Iterator[str]:
    now = state(folder, command)
    for name in sorted(now.keys() | known.after.keys()):
        if now.get(name) != known.after.get(name):
            yield f"differs: {name}{' is missing' * (name not in now)}{' is new' * (name not in known.after)}"
    yield from (f"left: {name}" for name in temporary(folder))


# -- full disks, folders that may not be written to, two at once ----------------------------------------------------


@contextmanager
def full_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """The folder on a disk with FREE blocks left, for root; else no file may grow beyond as much."""
    if os.geteuid() != 0:
        size = FREE * 4096
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return
    held = folder.with_name("held")
    shutil.rmtree(held, ignore_errors=True)
    folder.rename(held)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
    try:
        shutil.copytree(held, folder, dirs_exist_ok=True)
        with (folder / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
            file.truncate(max(0, file.tell() - FREE * 4096))
        yield lambda: None
        (folder / "filler").unlink()
        shutil.copytree(folder, held, dirs_exist_ok=True)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # who has just been killed may still be in it
        folder.rmdir()
        held.rename(folder)


def nobody() -> None:
    os.setgid(65534)
    os.setuid(65534)


@contextmanager
def read_only(folder: Path) -> Iterator[Callable[[], None]]:
    """Root becomes a user who may only read; anybody else loses the right to write."""
    places = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
    modes = {path: path.stat().st_mode for path in places}
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in (folder / "home", folder / "cache"):  # these may be elsewhere
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    try:
        yield nobody if os.geteuid() == 0 else (lambda: None)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def refused(
    what: str, borrowed: Any, command: Command, known: Undisturbed, template: Path, folder: Path, outputs: Path
) -> list[str] | None:
    """One line, a documented code, nothing corrupted; and the same command works where there is place again."""
    fresh(template, folder)
    for name in forked.OUTPUTS:
        (outputs / name).unlink(missing_ok=True)
        (outputs / name).touch(0o666)
        (outputs / name).chmod(0o666)
    wrong = []
    with borrowed(folder) as before:
        process = forked.start(command.words.split(), folder, before, outputs)
        code = forked.ended(process, SECONDS)
        if code is None:
            os.waitpid(process, 0)
        forked.end_children()  # workers of its own that wait for more work hold the place
    lines = forked.printed(outputs)[1].strip().splitlines()
    if code == known.code and not list(different(command, known, folder)):
        return None  # it found the place that it needs
    if code not in (1, 2) or not lines or not lines[-1].startswith("csada: ") or "Traceback" in "".join(lines):
        wrong.append(f"{what}: {code}, {lines[-2:]}")
    wrong += [f"{what}: {found}" for found in between(command, known, folder)]
    wrong += [f"{what}: left {left}" for left in temporary(folder)]
    code = finished(command, folder)
    if code != known.code:
        wrong.append(f"{what}: later it ends with {code}: {forked.printed(folder)[1].strip()[-300:]}")
        return wrong
    return wrong + [f"{what}, later: {found}" for found in different(command, known, folder)]


def together(command: Command, known: Undisturbed, template: Path, folder: Path, outputs: Path) -> list[str]:
    """Two at once: one may be refused; the result is that of one."""
    fresh(template, folder)
    second = outputs / "second"
    second.mkdir(exist_ok=True)
    for place in (outputs, second):
        for name in forked.OUTPUTS:
            (place / name).unlink(missing_ok=True)
    processes = [forked.start(command.words.split(), folder, outputs=place) for place in (outputs, second)]
    codes = [forked.ended(process, SECONDS) for process in processes]
    forked.end_children()
    told = [forked.printed(place)[1].strip()[-200:] for place in (outputs, second)]
    wrong = []
    if known.code not in codes or any(code not in (known.code, 1, 2) for code in codes) or "Traceback" in "".join(told):
        wrong.append(f"two at once: {codes} {told}")
    return wrong + [f"two at once: {found}" for found in different(command, known, folder)]


# -- the whole ----------------------------------------------------------------------------------------------------


def write_template(root: Path) -> Path:
    """The good files of the fuzz suite, a log with late labels, and the records of an experiment."""

    def run(words: list[str], folder: Path) -> tuple[int, float]:
        code = forked.ended(forked.start(words, folder), SECONDS)
        assert code is not None
        return code, 0.0

    template = root / "good"
    good.write(template, run)
    for name in (*good.LARGE, "csada.toml"):  # settings that nobody asks for
        path = template / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for words in (
        "train digits --model mlp --scale 0.4 --epochs 2 --out digits",
        "predict model table.csv --log decisions.jsonl --out decisions.csv",
        "report model --out report.html",
        "reproduce toy --scale smoke --runs away --results records",
    ):
        (template / "out").mkdir()
        code, _ = run(words.split(), template)
        assert code == 0, forked.printed(template)[1]
        shutil.rmtree(template / "out")
    shutil.rmtree(template / "away")
    for name in (*forked.OUTPUTS, "home", "cache"):
        path = template / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    labels = [("low", "high")[i % 5 == 0] for i in range(90)]  # not as the model says: a re-calibration is offered
    inputs = [json.loads(line)["input"] for line in (template / "decisions.jsonl").read_text().splitlines()]
    late = [f"{name},{label}\n" for name, label in zip(inputs, labels, strict=True)]
    (template / "late.csv").write_text("input,label\n" + "".join(late))
    return template


def tried(name: str, kills: int, given: argparse.Namespace, template: Path, place: Path) -> Tally:
    """All deaths of one command, in a folder of its own."""
    command, tally, folder = COMMANDS[name], Tally(), place / "case"
    (outputs := place / "printed").mkdir(parents=True)
    rng, now = Random(f"{given.seed}:{name}"), time.monotonic()
    try:
        known = undisturbed(command, template, folder)
    except AssertionError as error:
        print(f"{name}: {error}", flush=True)
        tally.wrong.append(f"undisturbed: {error}")
        return tally
    for _ in range(kills):
        death(command, known, template, folder, rng, tally)
        if given.keep and tally.wrong:
            break
    if given.others:
        for what, borrowed in (("full disk", full_disk), ("read-only", read_only)):
            found = refused(what, borrowed, command, known, template, folder, outputs)
            tally.others[f"{what}: {'enough' if found is None else 'refused'}"] += 1
            tally.wrong += found or ()
        tally.wrong += together(command, known, template, folder, outputs)
        tally.others["two at once"] += 1
    print(
        f"{name}: {tally.kills.total()} kills, {time.monotonic() - now:.1f} s ({known.seconds:.2f} s undisturbed, "
        f"{known.writes} changes)",
        *tally.wrong,
        sep="\n    ",
        flush=True,
    )
    if given.keep and tally.wrong:
        print(f"{folder}, and undisturbed {folder.with_name('expected')}", flush=True)
    else:
        shutil.rmtree(place)
    return tally


def unlisted() -> list[str]:
    """Commands of the program that neither table names, and names that are no command."""
    import typer

    from csada.cli.common import app

    def names(group: Any, before: str = "") -> Iterator[str]:
        for name, command in group.commands.items():
            inner = hasattr(command, "commands")
            yield from names(command, f"{before}{name} ") if inner else [before + name]

    return sorted(set(names(typer.main.get_command(app))) ^ ({name.split("/")[0] for name in COMMANDS} | set(NOTHING)))


def record(path: Path, seed: int, tallies: dict[str, Tally], others: dict[str, int]) -> None:
    from csada import __version__
    from csada.reading import write_json

    wrong = [line for tally in tallies.values() for line in tally.wrong]
    kills: Counter[str] = sum((tally.kills for tally in tallies.values()), Counter())
    sums = {
        "kills": kills.total(),
        "signals": dict(sorted(kills.items())),
        "results_that_differ": sum("differs: " in line for line in wrong),
        "corrupt_outputs_accepted": sum("corrupt: " in line for line in wrong),
        "temporary_files_left_after_the_second_start": sum("left: " in line for line in wrong),
        "other_failures": sum(not re.search("differs: |corrupt: |left: ", line) for line in wrong),
    }
    here = Path(__file__).resolve().parents[1]
    code = forked.state_of_code(*here.glob("deaths/*.py"), *here.glob("fuzz/*.py"))
    about = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "code": code, "seed": seed, "csada": __version__}
    about |= {"python": platform.python_version()} | sums | {"also_tried": others, "write_nothing": NOTHING}
    about |= {"left_out": sorted(COMMANDS.keys() - tallies.keys())}
    plain = {
        name: {key: dict(v) if isinstance(v, Counter) else v for key, v in vars(t).items()}
        for name, t in tallies.items()
    }
    commands = {name: {"words": COMMANDS[name].words, **tally} for name, tally in plain.items()}
    write_json(path, about | {"commands": commands})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in all, shared among the commands")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", nargs="*", help=f"of: {', '.join(COMMANDS)}")
    parser.add_argument("--without", nargs="*", default=[], help="commands to leave out")
    parser.add_argument("--short", action="store_true", help="without the slow commands")
    parser.add_argument("--others", action="store_true", help="also full disks, read-only folders, two at once")
    parser.add_argument("--keep", action="store_true", help="stop a command at its first failure and keep its folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="commands side by side")
    parser.add_argument("--record", type=Path, help="a JSON file to write")
    given = parser.parse_args()
    forked.warm_up()
    if missing := unlisted():
        print(f"not in tests/deaths/commands.py, or no command: {', '.join(missing)}")
        return 1
    names = given.commands or [
        name for name, command in COMMANDS.items() if not (given.short and command.slow) and name not in given.without
    ]
    memory = Path("/dev/shm")  # nothing here tests a disk's own speed
    root = Path(tempfile.mkdtemp(prefix="csada-deaths-", dir=memory if os.access(memory, os.W_OK) else None))
    root.chmod(0o755)
    os.environ |= {"CSADA_CACHE": str(root / "cache")}
    os.environ.pop("CSADA_DATA", None)
    template, begin = write_template(root), time.monotonic()
    shares = [given.kills // len(names) + (place < given.kills % len(names)) for place in range(len(names))]
    # the slow ones first, so that none is alone in the end
    order = sorted(range(len(names)), key=lambda place: not COMMANDS[names[place]].slow)
    tallies = dict.fromkeys(names, Tally())
    with ProcessPoolExecutor(given.jobs, get_context("fork"), forked.adopt) as jobs:
        found = [jobs.submit(tried, names[place], shares[place], given, template, root / str(place)) for place in order]
        for place, each in zip(order, found, strict=True):
            tallies[names[place]] = each.result()
    if not given.keep:
        shutil.rmtree(root)
    kills = sum(tally.kills.total() for tally in tallies.values())
    wrong = sum(len(tally.wrong) for tally in tallies.values())
    print(f"{kills} kills of {len(names)} commands in {time.monotonic() - begin:.0f} s; {wrong} went wrong")
    if given.record:
        others: Counter[str] = sum((tally.others for tally in tallies.values()), Counter())
        record(given.record, given.seed, tallies, dict(others))
    return int(bool(wrong) or kills != given.kills)


if __name__ == "__main__":
    sys.exit(main())
