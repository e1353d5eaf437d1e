"""Hostile files against every reader: each case in a process of its own, in little memory, for a few seconds.

    python tests/fuzz/run.py --cases 5000 --seed 1        # or: make fuzz
    python tests/fuzz/run.py --case 1:37                  # one case again: seed and number; its folder stays

Whatever the file, a command must end by itself with a documented exit code and, where that is not 0, with one line that says
why. It must not write outside of its folder, start a program, look up a name of a pickle or open a connection.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TextIO

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import forked
import good
from readers import READERS, prepare, words_of

SECONDS, MEMORY = 20, 3 << 29  # of a case; what a process that has PyTorch loaded may take on top of it
CODES = (0, 1, 2)  # docs/commands.md; of `check` also 3
TOLD = "told"  # what csada itself printed on the error output
EXIT = 70  # a rule of this page was broken
WRITES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.symlink",
    "os.link",
    "shutil.rmtree",
    "os.chmod",
}
NEVER = (
    "socket.connect",
    "socket.getaddrinfo",
    "os.exec",
    "os.system",
    "os.posix_spawn",
    "pickle.find_class",
    "code.__new__",
)


class Outcome(NamedTuple):
    number: int
    reader: str
    what: str
    wrong: str  # "" where all is well
    code: int
    seconds: float


def forbid(folder: Path) -> None:
    """From here on this process may write within the folder alone, and may do nothing that is never needed."""
    allowed = str(folder.resolve())

    def hook(event: str, given: tuple[Any, ...]) -> None:
        paths: list[Any] = []
        if event == "open" and (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            paths = [given[0]]
        elif event in WRITES:
            paths = list(
                given[:2] if event in ("os.rename", "os.link") else given[1:2] if event == "os.symlink" else given[:1]
            )
        elif event in NEVER or (event == "subprocess.Popen" and "git" not in str(given[0])):
            broken(f"{event} {given!r:.200}")
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                named = os.path.abspath(os.fsdecode(path))
                real = os.path.realpath(named)
                if event != "open":  # a link is renamed or removed itself
                    real = os.path.join(os.path.realpath(os.path.dirname(named)), os.path.basename(named))
                if not f"{real}/".startswith((f"{allowed}/", "/dev/null/")):  # in the latter nothing can be
                    broken(f"{event} outside: {real}")

    def broken(what: str) -> None:
        os.write(2, f"\nFORBIDDEN {what}\n".encode(errors="replace"))
        os._exit(EXIT)

    sys.addaudithook(hook)


class Copied(io.TextIOBase):
    """What is written goes to both."""

    def __init__(self, *files: TextIO) -> None:
        self.files = files

    def write(self, text: str) -> int:
        return max(file.write(text) for file in self.files)

    def flush(self) -> None:
        for file in self.files:
            file.flush()


def started(words: list[str], folder: Path) -> tuple[int, float]:
    """The exit code, negative for a signal, and the seconds that it took."""

    def limited() -> None:
        from csada.cli import common

        common.errors.file = Copied(sys.stderr, (folder / TOLD).open("w", encoding="utf-8", errors="backslashreplace"))
        forbid(folder)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))

    begin = time.monotonic()
    process = forked.start(words, folder, limited)
    if (code := forked.ended(process, SECONDS)) is None:
        os.waitpid(process, 0)
        code = -signal.SIGKILL
    return code, time.monotonic() - begin


def judged(words: list[str], code: int, seconds: float, folder: Path) -> str:
    """What is wrong with how it ended; "" where nothing is."""
    out, err = forked.printed(folder)
    lines = err.rstrip("\n").splitlines()
    last = lines[-1] if lines else ""
    if "FORBIDDEN" in err:
        return last
    if "Traceback (most recent call last)" in err:
        return f"a traceback: {last}"
    if code < 0:
        return "a hang" if seconds >= SECONDS else f"signal {-code}"
    if code not in CODES and not (code == 3 and "check" in words[:3]):
        return f"the exit code {code}"
    verdict = re.search(r'^(fail|not enough samples): |"verdict": "', out, re.MULTILINE)  # of csada check
    if code and not last.startswith("csada: ") and not (code in (1, 3) and verdict):
        return f"no line that says why: {lines[-3:]}"
    told = (folder / TOLD).read_text(errors="replace").splitlines() if (folder / TOLD).exists() else []
    if strange := Counter(lines) - Counter(told):  # the reason is one line, what csada warns of comes before it
        return f"a library's words: {list(strange)[:3]}"
    if any(len(line) > 20_000 for line in lines):
        return f"a line of {max(map(len, lines)):,} letters"
    if found := re.search(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]", out + err):
        return f"the control character {found[0]!r} on the terminal"
    if left := [str(p) for p in folder.rglob(".*.tmp")]:
        return f"left {left[0]}"
    return ""


def case(seed: int, number: int, template: Path, folder: Path, names: list[str]) -> Outcome:
    rng = Random(f"{seed}:{number}")
    name = names[number % len(names)]
    reader = READERS[name]
    words = words_of(rng.choice(reader.commands), reader, rng)
    what = made(name, words, template, folder, rng)
    code, seconds = started(words, folder)
    told = f"csada {shlex.join(words)!r:.160} [{what[:120]}]"
    return Outcome(number, name, told, judged(words, code, seconds, folder), code, round(seconds, 2))


def made(name: str, words: list[str], template: Path, folder: Path, rng: Random | None) -> str:
    """The folder of a case, and what was changed in it; without rng nothing is."""
    reader = READERS[name]
    shutil.rmtree(folder, ignore_errors=True)
    unused = [name for name in good.LARGE if not reader.file.startswith(name)]
    shutil.copytree(template, folder, ignore=lambda where, _: unused if where == str(template) else [])
    (folder / "out").mkdir()
    prepare(name, folder)
    if "csada.toml" not in reader.file and "csada.toml" not in words:
        (folder / "csada.toml").unlink()
    if reader.primed:
        started(words, folder)
        for stream in (*forked.OUTPUTS, TOLD):
            (folder / stream).unlink(missing_ok=True)
    return reader.change(rng.choice(sorted(folder.glob(reader.file))), rng) if reader.file and rng else ""


def not_good(template: Path, folder: Path, names: list[str]) -> list[str]:
    """Commands that refuse their files as they are: cases of them would try little."""
    found = []
    for name in names:
        for command in READERS[name].commands if READERS[name].file else ():
            words = words_of(command, READERS[name], Random(0))
            made(name, words, template, folder, None)
            code, _ = started(words, folder)
            if code and not (words[0] == "check" and code in (1, 3)):  # a verdict
                found.append(f"{command}: {code}, {(folder / 'stderr').read_text().strip()[-300:]}")
    return found


def record(path: Path, seed: int, found: list[Outcome]) -> None:
    """Cases by reader and exit code, and what went wrong by name, of runs of this code with other seeds, too."""
    from csada import __version__
    from csada.reading import write_json

    names = ("torch", "numpy", "pillow", "onnxruntime", "pyarrow", "safetensors")
    versions = {"csada": __version__, "python": platform.python_version()} | {n: version(n) for n in names}
    code = forked.state_of_code(*Path(__file__).resolve().parent.glob("*.py"))
    about = {"code": code, "versions": versions, "limits": {"seconds": SECONDS, "bytes": MEMORY}}
    earlier = json.loads(path.read_text()) if path.exists() else {}
    runs = [run for run in earlier.get("runs", ()) if earlier["code"] == code and run["seed"] != seed]
    readers: dict[str, Counter[str]] = {name: Counter() for name in READERS}
    for each in found:
        readers[each.reader][str(each.code)] += 1
    failures = [f"{seed}:{each.number} {each.reader}: {each.wrong} {each.what}" for each in found if each.wrong]
    slowest = max(each.seconds for each in found)
    own = {"seed": seed, "cases": len(found), "slowest_seconds": slowest, "failures": failures}
    runs.append(own | {"exit_codes": {name: dict(sorted(codes.items())) for name, codes in readers.items() if codes}})
    total: Counter[str] = Counter()
    per_reader: Counter[str] = Counter()
    for run in runs:
        for name, codes in run["exit_codes"].items():
            total.update(codes)
            per_reader[name] += sum(codes.values())
    sums = {"cases": sum(per_reader.values()), "failures": sum(len(run["failures"]) for run in runs)}
    sums |= {"exit_codes": dict(sorted(total.items())), "cases_of_readers": dict(per_reader)}
    write_json(path, {"date": time.strftime("%Y-%m-%d", time.gmtime())} | about | sums | {"runs": runs})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", help="SEED:NUMBER, to see one again")
    parser.add_argument("--good", action="store_true", help="run every command on files that nobody changed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, help="a JSON file: what was run is added to what it holds of this code")
    parser.add_argument("--readers", nargs="*", help=f"of: {', '.join(READERS)}")
    given = parser.parse_args()
    names = given.readers or list(READERS)
    root = Path(tempfile.mkdtemp(prefix="csada-fuzz-"))
    os.environ |= {"CSADA_CACHE": str(root / "cache")}
    os.environ.pop("CSADA_DATA", None)
    forked.warm_up()
    good.write(root / "good", started)
    if given.good:
        found = not_good(root / "good", root / "case", names)
        print(*found, f"{len(found)} commands refuse good files", sep="\n")
        shutil.rmtree(root)
        return int(bool(found))
    if given.case:
        seed, number = map(int, given.case.split(":"))
        outcome = case(seed, number, root / "good", root / "case", names)
        print(
            outcome,
            root / "case",
            *(f"{name}:\n{text}" for name, text in zip(forked.OUTPUTS, forked.printed(root / "case"), strict=True)),
            sep="\n",
        )
        return int(bool(outcome.wrong))
    workers, begin = [], time.monotonic()
    for job in range(given.jobs):
        if (process := os.fork()) == 0:
            code = 1
            try:
                with (root / f"outcomes-{job}").open("w") as file:
                    for number in range(job, given.cases, given.jobs):
                        outcome = case(given.seed, number, root / "good", root / f"case-{job}", names)
                        print(json.dumps(outcome), file=file, flush=True)
                        if outcome.wrong:
                            print(
                                f"{given.seed}:{number} {outcome.reader}: {outcome.wrong}\n    {outcome.what}",
                                flush=True,
                            )
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append(process)
    ended = [os.waitpid(process, 0)[1] for process in workers]
    found = [Outcome(*json.loads(line)) for file in root.glob("outcomes-*") for line in file.read_text().splitlines()]
    shutil.rmtree(root, ignore_errors=True)
    codes, wrong = Counter(each.code for each in found), [each for each in found if each.wrong]
    slowest = max(found, key=lambda each: each.seconds)
    print(
        f"{len(found):,} cases of {len(names)} readers in {time.monotonic() - begin:.0f} s, seed {given.seed}", end=": "
    )
    print(
        f"exit codes {dict(sorted(codes.items()))}; the slowest took {slowest.seconds} s ({slowest.reader})", end="; "
    )
    print(f"{len(wrong)} went wrong")
    if given.record:
        record(given.record, given.seed, found)
    return int(bool(wrong) or any(ended) or len(found) != given.cases)


if __name__ == "__main__":
    sys.exit(main())
