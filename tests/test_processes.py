"""Work that is shared among processes: in order, and nobody is left when it ends, however it ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from csada.errors import RunError
from csada.processes import in_order, own_sigterm

PROGRAM = (sys.executable, "-W", "ignore", "-m", "csada")
STARTS = b"spawn_main"  # in the command line of a process that shares the work


def members(group: int) -> list[bytes]:
    """The command lines of the processes of a group that have not ended."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, _, own = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                found.append((place / "cmdline").read_bytes())
        except OSError:  # it has just ended
            continue
    return found


def started(*words, **more):
    return subprocess.Popen(
        words, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def until(true, seconds=60):
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds
        time.sleep(0.02)


@pytest.mark.parametrize("words", ["tabular --seeds 2 --out {}/tab.json", "data show pills"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("later", [0, 4], ids=["starting", "working"])
def test_an_interrupt_that_reaches_all_processes_is_one_line(tmp_path, words, number, code, later):
    """It was a traceback of fifty lines, now and then of a thread that still wrote when its command had ended."""
    environment = os.environ | {"CSADA_CACHE": str(tmp_path / "cache")}
    process = started(*PROGRAM, *words.format(tmp_path).split(), env=environment)
    until(lambda: sum(STARTS in each for each in members(process.pid)) == 2)
    time.sleep(later)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, "csada: interrupted\n")
    until(lambda: not members(process.pid), 10)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("tab") or path.suffix in (".tmp", ".npy")]


@pytest.mark.parametrize("later", [0, 0.6, 1.2])
def test_an_interrupt_while_the_engines_processes_start_is_one_line(tmp_path, later):
    words = f"reproduce toy --scale smoke --workers 2 --runs {tmp_path}/runs --results {tmp_path}"
    process = started(*PROGRAM, *words.split())
    until(lambda: sum(STARTS in each for each in members(process.pid)) == 2)
    time.sleep(later)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.count("\n")) == (130, 1) and errors.startswith("csada: interrupted")
    until(lambda: not members(process.pid), 10)


def test_results_come_in_order_and_a_script_needs_no_guard(tmp_path):
    (tmp_path / "script.py").write_text(
        "from csada.processes import in_order\n"
        "from time import sleep\n"
        "print(*in_order(divmod, ((n, 7) for n in range(20)), 2))\n"
        "print(*in_order(sleep, [(1.0,), (0.0,)], 2))\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    expected = " ".join(str(divmod(n, 7)) for n in range(20))
    assert done.stdout.splitlines() == [expected, "None None"] and not done.stderr


def test_an_error_of_the_work_is_raised_and_a_process_that_dies_is_named():
    with pytest.raises(ZeroDivisionError):
        list(in_order(divmod, [(1, 1), (1, 0)], 2))
    with pytest.raises(RunError, match="a process ended before its work was done"):
        list(in_order(os._exit, [(1,)], 2))


def test_who_stops_asking_waits_for_nobody():
    with closing(in_order(time.sleep, [(0.0,), (1000.0,)], 2)) as results:
        assert next(results) is None


def test_processes_end_with_the_one_that_was_killed(tmp_path):
    process = started(*PROGRAM, "tabular", "--seeds", "2", "--out", str(tmp_path / "tab.json"))
    until(lambda: sum(STARTS in each for each in members(process.pid)) == 2)
    time.sleep(4)
    process.kill()
    process.communicate()
    until(lambda: not members(process.pid))


def test_a_library_that_takes_sigterm_for_itself_does_not_keep_it():
    """Ray does, while it starts: the command ended with 15, or with Ray's own words."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), own_sigterm():
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
