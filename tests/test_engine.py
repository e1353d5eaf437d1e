"""Runs on a real Ray cluster of two nodes with one core each, which dies in parts; and what an engine refuses."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from tasks import Reads, Sent, dies, diverges, meets, nowhere, sleeps, threads, waits
from test_cli import inside
from test_sweep import finished, numbers, run_here, start, starts, sweep

import csada
from csada.data.mapped import mapped, packed, write_header
from csada.errors import Diverged, InputError
from csada.folders import locked
from csada.models.modes import borrowed_threads
from csada.paper import tabular
from csada.paper.grow import extend
from csada.paper.library import read_library
from csada.paper.sources import SOURCES
from csada.reading import read_json
from csada.workflow.cluster import Resources
from csada.workflow.compare import Comparison
from csada.workflow.engine import DEATHS, ENDED, SPARE, Engine, Task, carry_out
from csada.workflow.train import train

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # others may fill the memory, and Ray would kill runs of ours
}
SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20}


def of_ray(folder):
    """Processes of the clusters that keep their files in that folder: each has its log open there."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has ended, or closed it
            if os.readlink(file).startswith(f"{folder}/") and file.parts[2] != str(os.getpid()):
                found.add(file.parts[2])
    return found


def alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(found, seconds=120):
    """Those that are still there after that time."""
    deadline = time.monotonic() + seconds
    while (left := found()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one core each."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    here = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, value in (QUIET | {"PYTHONPATH": here, "RAY_TMPDIR": folder}).items():  # of the nodes
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args=SMALL | {"include_dashboard": False})
        try:
            made.add_node(**SMALL)
            patch.setenv("RAY_ADDRESS", made.address)
            assert of_ray(folder)
            yield made
        finally:
            made.shutdown()
        assert not gone(partial(of_ray, folder))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def head():
    """What `ray start --head` starts where a token is known: where it keeps its files, its environment, and its ports."""
    pytest.importorskip("ray", reason="Ray is not installed")
    port, clients = free_port(), free_port()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        own = QUIET | {"HOME": folder, "RAY_TMPDIR": folder}
        (Path(folder) / ".ray").mkdir()
        (Path(folder) / ".ray" / "auth_token").write_text("5e" * 16)
        here = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        words = ["start", "--head", "--block", "--num-cpus=1", "--include-dashboard=false", f"--port={port}"]
        words += [f"--ray-client-server-port={clients}", "--object-store-memory=80000000"]
        process = subprocess.Popen(
            [Path(sys.executable).parent / "ray", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if k != "RAY_AUTH_MODE"} | own | {"PYTHONPATH": here},
        )
        try:
            for line in process.stdout:
                if b"Ray runtime started" in line:
                    break
            while process.poll() is None:  # what serves clients may be later than the line
                with suppress(OSError), socket.create_connection(("127.0.0.1", clients), 1):
                    break
                time.sleep(0.1)
            yield folder, own, f"127.0.0.1:{port}", f"ray://127.0.0.1:{clients}"
        finally:
            process.terminate()  # it ends the others
            process.communicate()
            if left := gone(partial(of_ray, folder), 30):
                for number in left:
                    os.kill(int(number), signal.SIGKILL)
        assert not left


@pytest.mark.parametrize("asked", ["found", "by its address", "as a client"])
def test_a_cluster_that_wants_a_token_is_used(head, tmp_path, monkeypatch, asked):
    """As Ray starts one where it knows a token."""
    _, own, address, client = head
    monkeypatch.delenv("RAY_AUTH_MODE")
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    words = "--engine", client if asked == "as a client" else "ray"
    address = address if asked == "by its address" else ""
    if asked != "found":  # Ray hands its token to no address that is merely named
        monkeypatch.setenv("RAY_ADDRESS", address)
        places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results")
        refused = inside("reproduce", sweep(tmp_path), "--scale", "smoke", *places, *words)
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 2 and "wants its token: put it into ~/.ray/auth_token or RAY_AUTH_TOKEN" in line
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
    process = start(sweep(tmp_path, epochs=1), tmp_path, *words, address=address)
    out, err = process.communicate(timeout=300)
    assert "3 done now, 0 before, 0 left, 0 failed" in out and err == "", err


def test_a_wrong_token_is_one_line(head, tmp_path, monkeypatch, capfd):
    _, own, address, client = head
    for name, value in (own | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}).items():
        monkeypatch.setenv(name, value)
    for name, known in (("ray", ""), ("ray", address), (client, "")):
        monkeypatch.setenv("RAY_ADDRESS", known)
        with pytest.raises(InputError, match="wants its token"):
            done_and_failed(tmp_path, Engine(name), a=nowhere)
    assert capfd.readouterr() == ("", "")


@contextmanager
def web():
    """A server that speaks HTTP 1 alone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def mute():
    """A server that takes calls and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("server", [web, mute])
@pytest.mark.parametrize("client", [True, False])
def test_a_port_that_is_not_rays_is_refused_within_seconds(tmp_path, monkeypatch, capfd, server, client):
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr("csada.workflow.cluster.PATIENCE", 2)
    with server() as port:
        began, address = time.monotonic(), f"{'ray://' * client}127.0.0.1:{port}"
        monkeypatch.setenv("RAY_ADDRESS", "" if client else address)
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address}: .*; start one"):
            done_and_failed(tmp_path, Engine(address if client else "ray"), a=nowhere)
        assert time.monotonic() - began < 7 and capfd.readouterr() == ("", "")


def test_the_ports_of_clients_and_of_nodes_are_not_mistaken(head, tmp_path, monkeypatch):
    _, _, address, client = head
    monkeypatch.setenv("RAY_ADDRESS", client.removeprefix("ray://"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "5e" * 16)
    for name, port in (("ray", 6379), (f"ray://{address}", 10001)):
        with pytest.raises(InputError, match=f"another service is there; the usual port is {port}"):
            done_and_failed(tmp_path, Engine(name), a=nowhere)


def on_ray(spec, folder, *more):
    return start(spec, folder, "--engine", "ray", *more, address=os.environ["RAY_ADDRESS"])


def wait_for(what, process):
    deadline = time.monotonic() + 900
    try:
        while not what():
            assert process.poll() is None and time.monotonic() < deadline, "it ended, or took too long"
            time.sleep(0.02)
    except BaseException:
        process.kill()
        print(process.communicate())
        raise


def test_a_node_and_the_driver_die_and_the_records_are_those_of_an_undisturbed_sweep(cluster, tmp_path):
    spec = sweep(tmp_path, epochs=60, matrices=3)
    broken, whole = tmp_path / "broken", tmp_path / "whole"

    def done():
        return {path.parent.name for path in broken.glob("runs/*/*/result.json")}

    def under_way():
        return {path.parent.name for path in broken.glob("runs/sweep/*/history.jsonl")} - done()

    def held():
        """Runs that somebody works on."""
        found = set()
        for file in broken.glob("runs/*/*/starts.log"):
            with locked(file.parent) as free:
                found |= set() if free else {file.parent.name}
        return found

    process = on_ray(spec, broken)
    wait_for(lambda: len(under_way()) == 2, process)  # one on each node
    first = done()
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    wait_for(lambda: done() > first and under_way(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not gone(held)  # workers outlive it for a moment, and may end a run or begin one
    second, started = done(), starts(broken)
    assert second < set(started) and not list((broken / "results").glob("*"))

    cluster.add_node(**SMALL)
    assert "0 left, 0 failed" in finished(on_ray(spec, broken))
    run_here(spec, whole)
    assert numbers(broken) == numbers(whole)
    after = starts(broken)
    assert all(after[name] == 1 for name in first)  # whatever was done was not done again
    assert after == {name: started.get(name, 0) + (name not in second) for name in after}


def test_two_drivers_on_one_sweep_do_every_run_once(cluster, tmp_path):
    spec = sweep(tmp_path, matrices=2)
    both = [on_ray(spec, tmp_path, "--workers", "1") for _ in range(2)]
    texts = [finished(process) for process in both]
    assert sum(int(text.split(" done now")[0].split()[-1]) for text in texts) == 5  # four runs and their baseline
    assert set(starts(tmp_path).values()) == {1}


def done_and_failed(folder, engine, **calls):
    done = []
    tasks = [Task(name, call, lambda _, n=name: done.append(n), folder / name, 1) for name, call in calls.items()]
    failed = carry_out([tasks], engine)
    return done, {name: str(error) for name, error in failed.items()}


def test_a_run_that_fails_on_a_node_says_where(cluster, tmp_path):
    done, failed = done_and_failed(tmp_path, Engine("ray"), a=nowhere)
    assert not done and failed == {
        "a": f"FileNotFoundError: /data/photos is not there (on node {socket.gethostname()})"
    }


def test_code_that_a_node_lacks_is_named(cluster, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def run(tell): return 1")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import run

    (tmp_path / "only_here.py").unlink()  # from now on it is in this process alone
    done, failed = done_and_failed(tmp_path, Engine("ray"), a=run)
    assert not done and "a node cannot start it: ModuleNotFoundError: No module named 'only_here'" in failed["a"]


def test_a_worker_that_dies_is_replaced_and_a_run_that_kills_them_is_given_up(tmp_path):
    calls = {"dies": dies, "once": partial(waits, tmp_path / "file"), "later": nowhere}
    done, failed = done_and_failed(tmp_path, Engine(workers=2), **calls)
    assert done == ["once"] and failed["dies"] == ENDED % "" and "is not there" in failed["later"]


def test_a_run_that_kills_its_worker_on_a_cluster_is_tried_thrice_in_all(cluster, tmp_path):
    calls = {"dies": partial(dies, file=tmp_path / "log"), "once": partial(waits, tmp_path / "file")}
    done, failed = done_and_failed(tmp_path, Engine("ray"), **calls)
    assert done == ["once"] and "The worker died unexpectedly" in failed["dies"]
    assert (tmp_path / "log").read_text().count("started") == DEATHS


def test_a_driver_hands_a_cluster_no_more_than_it_can_do(cluster, tmp_path):
    for limit, most in ((None, len(cluster.list_all_nodes()) + SPARE), (1, 1)):
        folder, found = tmp_path / str(limit), []
        folder.mkdir()
        tasks = [Task(str(i), Sent(folder, i), found.append, folder / str(i), 1) for i in range(12)]
        assert not carry_out([tasks], Engine("ray", limit))
        assert len(found) == 12 and min(found) <= most  # of the first that was begun


def test_the_cores_are_shared_by_the_workers_and_a_node_uses_what_it_was_asked_for(cluster, tmp_path):
    for engine, expected in ((Engine(workers=2), 3), (Engine("ray"), 1)):
        found = []
        with borrowed_threads(6):
            assert not carry_out([[Task("a", threads, found.append, tmp_path / "a", 1)]], engine)
        assert found == [expected]


def test_a_folder_that_a_node_does_not_see_is_named(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("csada.workflow.engine.PATIENCE", 2)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        own = Path(f"/proc/self/fd/{folder}")  # the same name means something else in each process
        done, failed = done_and_failed(own / "runs", Engine("ray"), a=threads)
    finally:
        os.close(folder)
    assert not done and f"node {socket.gethostname()} does not see {own / 'runs'}; give a folder" in failed["a"]


def test_no_node_is_left_out_because_another_driver_has_ended_a_run_that_waits(cluster, tmp_path):
    """It then removes the file by which a node knows the folder."""
    done, every, ended = [], [2, 2, 0.1, 0.1], threading.Event()
    tasks = [Task(str(i), partial(sleeps, s), done.append, tmp_path / str(i), 1) for i, s in enumerate(every)]

    def remove():
        """Each thrice: it is written again when the run has come back from a node that did not find it."""
        left = [task.file for task in tasks[2:]] * 3
        while left and not ended.wait(0.02):
            for file in set(left):
                with suppress(FileNotFoundError):
                    file.unlink()
                    left.remove(file)

    other = threading.Thread(target=remove)
    other.start()
    try:
        failed = carry_out([tasks], Engine("ray"))
    finally:
        ended.set()
        other.join()
    assert not failed and sorted(done) == sorted(every)


def test_a_node_that_lacks_the_decoded_images_is_left_out_and_the_others_do_the_work(cluster, tmp_path, monkeypatch):
    """The same name of a file means something else on a node that was started in another folder."""
    file, deep = tmp_path / "pixels", tmp_path.joinpath(*"abcdefghijkl")  # the way up from there is another
    deep.mkdir(parents=True)
    with file.open("wb") as out:
        write_header(out, (2, 3, 4, 4))
        out.write(bytes([1]) * 2 * 3 * 16)
    pixels, done = packed(mapped(Path("/proc/self/cwd", os.path.relpath(file)), 2, 4)), []
    tasks = [Task(str(i), Reads(pixels), done.append, tmp_path / "runs" / str(i), 1) for i in range(8)]
    with monkeypatch.context() as there:
        there.chdir(deep)
        lacking = cluster.add_node(**SMALL | {"num_cpus": 2})
    try:
        with monkeypatch.context() as hasty:
            hasty.setattr("csada.workflow.engine.PATIENCE", 2)
            failed = carry_out([tasks], Engine("ray", resources=Resources(cpus=2)))  # only that one has two cores
        assert not done and len(failed) == 8
        for error in map(str, failed.values()):
            assert "must see the decoded images" in error and f"(on node {socket.gethostname()})" in error
        assert not carry_out([tasks], Engine("ray")) and done == [96] * 8
    finally:
        cluster.remove_node(lacking)
        cluster.wait_for_nodes(60)  # until it no longer counts as alive


DRIVER = """
import sys
from pathlib import Path
from tasks import forever, threads
from csada.workflow.engine import Engine, Task, carry_out

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    tasks = [
        Task("short", threads, lambda _: (folder / "short").touch(), folder / "a", 1),
        Task("long", forever, print, folder / "b", 1),
    ]
    carry_out([tasks], Engine(workers=2))
"""


def children(number):
    own = [found for file in Path(f"/proc/{number}/task").glob("*/children") for found in file.read_text().split()]
    return own + [each for child in own for each in children(child)]


def test_no_worker_outlives_a_driver_that_was_killed(tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    here = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, tmp_path / "driver.py", tmp_path], env=os.environ | {"PYTHONPATH": here}
    )
    wait_for(lambda: (tmp_path / "short").exists() and (tmp_path / "b").exists(), process)
    workers = children(process.pid)
    process.kill()
    process.wait()
    left = gone(lambda: [number for number in workers if alive(number)])
    for number in left:
        os.kill(int(number), signal.SIGKILL)
    assert len(workers) > 2 and not left


def test_a_round_is_done_at_once_and_the_next_one_later_and_progress_names_what_is_under_way(tmp_path):
    one, two, both, ended, seen = tmp_path / "one", tmp_path / "two", tmp_path / "both", [], []
    pair = [
        Task(own.name, partial(meets, own, other, both), ended.append, tmp_path / f"{own.name}.epoch", 4)
        for own, other in ((one, two), (two, one))
    ]

    def shown(*now):
        seen.append(now)
        if now == (4, 12, {"one": (1, 2), "two": (1, 2)}):
            both.touch()

    def rounds():
        yield pair
        assert sorted(ended) == ["one", "two"]
        yield [Task("three", partial(meets, one, two, both), ended.append, tmp_path / "three.epoch", 4)]

    assert not carry_out(rounds(), Engine(workers=2), on_progress=shown, total=12)
    assert ended[2:] == ["one"] and both.exists()
    assert not list(tmp_path.glob("*.epoch"))


def test_a_failure_says_what_it_says_anywhere_but_holds_no_model(tmp_path):
    for engine in (Engine(), Engine(workers=2)):
        failed = carry_out([[Task("a", diverges, print, tmp_path / "a", 1)]], engine)
        assert isinstance(failed["a"], Diverged) and str(failed["a"]) == "the loss became nan"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "slurm"), "unknown engine 'slurm'; known: local, ray, ray://HOST"),
        (
            ("--runs", "s3://bucket/runs"),
            "s3:/bucket/runs is an address; give a folder, with several nodes one that all",
        ),
        (("--engine", "ray://127.0.0.1:1"), "no Ray cluster answers at ray://127.0.0.1:1: Connection refused"),
        (("--engine", "ray://127.0.0.1:x"), "no Ray cluster answers at ray://127.0.0.1:x"),
        (("--per-run", "cpus=1"), "--per-run is what a run asks a Ray cluster for: add --engine ray, or leave it out"),
        (("--engine", "ray", "--per-run", "cpus"), "'cpus' is no list of resources; write cpus=2,gpus=0.5,memory_gb=4"),
        (("--engine", "ray", "--per-run", "cpu=1"), "unknown key 'cpu'; known keys: cpus, gpus, memory_gb"),
        (("--engine", "ray", "--per-run", "cpus=-1"), "cpus must be at least 0.01, got -1"),
        (("--engine", "ray", "--per-run", "cpus=1e-9"), "cpus must be at least 0.01, got 1e-09"),
        (("--engine", "ray", "--per-run", "gpus=1.5"), "gpus above 1 must be whole, got 1.5"),
        (("--engine", "ray", "--per-run", "memory_gb=0"), "memory_gb must be at least 0.01, got 0"),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, message):
    pytest.importorskip("ray", reason="Ray is not installed")
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results")
    run = inside("reproduce", sweep(tmp_path), "--scale", "smoke", *places, *words)
    assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and message in run.stderr
    assert os.listdir(tmp_path) == ["sweep.toml"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m"
    assert (
        inside("train", "digits", "--scale", "0.3", "--model", "mlp", "--epochs", "5", "--out", folder).returncode == 0
    )
    return folder


@pytest.mark.parametrize("missing", ["ray", "grpc"])
def test_every_command_with_an_engine_refuses_an_unknown_one_and_names_what_is_missing(
    model, tmp_path, monkeypatch, missing
):
    monkeypatch.setitem(sys.modules, missing, None)  # an import then fails
    ray = {"ray": "ray", "grpc": "ray://127.0.0.1:1"}[missing]
    costs = "--costs", "pareto:0", "--scale", "0.3"
    for words in (
        ("reproduce", sweep(tmp_path), "--scale", "smoke", "--runs", tmp_path / "runs", "--results", tmp_path / "new"),
        ("compare", "digits", *costs, "--methods", "penalty", "--out", tmp_path / "compared"),
        ("fit", model, "digits", *costs, "--epochs", "1", "--out", tmp_path / "fitted"),
        ("tune", model, "digits", *costs, "--trials", "1", "--out", tmp_path / "tuned"),
        ("study", "digits", "--runs", tmp_path / "runs", "--results", tmp_path / "new"),
    ):
        for name, why in (
            ("slurm", "unknown engine 'slurm'; known: local, ray, ray://HOST"),
            (ray, f"--engine {ray} needs Ray: pip install 'csada[ray]', or leave it out"),
        ):
            run = inside(*words, "--engine", name)
            assert run.returncode == 2 and run.stderr.splitlines()[-1] == f"csada: {why}", (words, run.stderr)


def test_what_cannot_be_had_at_the_same_time_is_refused(model, tmp_path):
    fit = "fit", model, "digits", "--scale", "0.3", "--costs", "pareto:0", "--out", tmp_path / "out"
    for words, why in (
        (("--time", "5m", "--workers", "2"), "--time trains one network after the other: leave it out"),
        (("--method", "penalty", "--engine", "ray"), "--engine is for auto: leave out --method"),
        (("--method", "penalty", "--per-run", "cpus=2"), "--per-run is for auto: leave out --method"),
    ):
        run = inside(*fit, *words)
        assert run.returncode == 2 and why in run.stderr.splitlines()[-1], run.stderr


@pytest.mark.parametrize("asked", [{"cpus": 3}, {"gpus": 1}, {"memory_gb": 1e6}, {"cpus": 0.5, "memory_gb": 1e300}])
def test_more_than_any_node_has_is_refused_at_once(cluster, tmp_path, asked):
    """Two nodes with a core each, and one of two cores that was removed and may still be counted, have no three for one run."""
    with pytest.raises(InputError, match=r"a run asks for .*, and no node has that; they have 1 CPU"):
        done_and_failed(tmp_path, Engine("ray", resources=Resources(**asked)), a=nowhere)


def test_what_a_node_has_is_taken(cluster, tmp_path):
    asked = Resources(cpus=0.25, gpus=0, memory_gb=0.05)
    done, failed = done_and_failed(tmp_path, Engine("ray", resources=asked), a=threads, b=threads)
    assert sorted(done) == ["a", "b"] and not failed


def test_seeds_of_a_comparison_and_candidates_of_auto_are_done_side_by_side(cluster, tmp_path):
    """With the numbers of doing them one after the other."""
    plan = "compare", "digits", "--scale", "0.3", "--costs", "pareto:0", "--methods", "csada", "--seeds", "2"
    plan += "--baseline-epochs", "3", "--epochs", "1"
    for name, words in (("here", ()), ("there", ("--engine", "ray"))):
        assert inside(*plan, "--out", tmp_path / name, *words).returncode == 0
    here, there = (read_json(tmp_path / name / "compare.json", Comparison) for name in ("here", "there"))
    assert [run.confusion for run in there.runs] == [run.confusion for run in here.runs]
    assert {path.name for path in tmp_path.glob("*/.csada/*")} == {"lock"}

    assert inside("train", "digits", "--model", "cnn", "--epochs", "4", "--out", tmp_path / "m").returncode == 0
    fit = "fit", tmp_path / "m", "digits", "--costs", "pareto:0"
    for name, words in (("one", ()), ("ray", ("--engine", "ray"))):
        assert inside(*fit, "--out", tmp_path / name, *words).returncode == 0
    one, ray = (csada.Classifier.load(tmp_path / name) for name in ("one", "ray"))
    x = csada.data.load("digits").test.x
    assert len(one.evidence.history) and np.array_equal(one.probabilities(x), ray.probabilities(x))

    search = "tune", tmp_path / "m", "digits", "--costs", "pareto:0", "--trials", "5", "--epochs", "1"
    nodes = str(len(cluster.list_all_nodes()))  # as many trials at once
    for name, words in (("local", ("--workers", nodes)), ("spread", ("--engine", "ray"))):
        assert inside(*search, "--out", tmp_path / name, *words).returncode == 0
    local, spread = ((tmp_path / name / "trials.jsonl").read_text() for name in ("local", "spread"))
    assert local == spread and local.count("\n") == 5


def test_folds_and_the_networks_of_a_study_are_done_on_a_cluster(cluster, tmp_path, monkeypatch):
    splits, costs = tabular.load("wine", 0)  # few enough for folds
    given = train(splits, "mlp", epochs=3)
    here = csada.auto(given, splits, costs)
    there = csada.auto(given, splits, costs, engine=Engine("ray"), checkpoints=tmp_path)
    assert len(there.evidence.labels("validation")) == len(splits.train) + len(splits.validation)
    assert all(np.array_equal(there.evidence.arrays[name], each) for name, each in here.evidence.arrays.items())

    monkeypatch.setitem(SOURCES, "wine", replace(SOURCES["wine"], targets=(), epochs=1))
    found = []
    for name in ("local", "ray"):
        folder = tmp_path / name
        assert extend("wine", folder, folder / "runs", baselines=1, engine=Engine(name)) == []
        found.append(read_library(folder, "wine").arrays)
    one, other = found
    assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("left", ["", "127.0.0.1:1"])
def test_without_a_cluster_one_is_started_and_leaves_no_process(tmp_path, monkeypatch, left):
    """Also where a cluster that was killed has left its address."""
    pytest.importorskip("ray", reason="Ray is not installed")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # tmp_path would be too long for its sockets
        monkeypatch.setenv("RAY_TMPDIR", folder)  # or another cluster of this machine would be found
        monkeypatch.setenv("HOME", folder)  # Ray writes a token there
        if left:
            (Path(folder) / "ray").mkdir()
            (Path(folder) / "ray" / "ray_current_cluster").write_text(left)
            run = start(sweep(tmp_path, epochs=1), tmp_path, "--engine", "ray")  # without RAY_ADDRESS
            assert "3 done now, 0 before, 0 left, 0 failed" in finished(run)
        else:  # also from Python
            monkeypatch.delenv("RAY_ADDRESS", raising=False)
            done, failed = done_and_failed(tmp_path, Engine("ray"), a=threads)
            assert done == ["a"] and not failed
        assert list(Path(folder).glob("ray/session_*/logs")) and not gone(partial(of_ray, folder))


def test_an_address_that_nobody_answers_at_is_refused_at_once(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: Connection refused; start one"):
        done_and_failed(tmp_path, Engine("ray"), a=nowhere)
