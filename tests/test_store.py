"""The files of runs at a URL: what is exchanged, what is refused, and a sweep on nodes that share no folder."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import fsspec
import pytest
from tasks import threads
from test_cli import inside
from test_engine import QUIET, SMALL, gone, of_ray, wait_for
from test_sweep import finished, numbers, run_here, start, starts, sweep

from csada.bounds import VARIABLE
from csada.errors import InputError, RunError
from csada.reading import read_json
from csada.workflow import engine
from csada.workflow import store as module
from csada.workflow.compare import FILE, Comparison
from csada.workflow.engine import Engine, Task, carry_out
from csada.workflow.store import Store


@pytest.fixture(params=["file", "memory"])
def pair(request, tmp_path):
    """Two folders that exchange their files, as those of two nodes, and what shows the files at the URL."""
    url = f"file://{tmp_path}/url" if request.param == "file" else f"memory://{uuid4().hex}"
    files, base = fsspec.url_to_fs(url)

    def there():
        files.invalidate_cache()
        return {path.removeprefix(f"{base}/"): files.cat_file(path).decode() for path in files.find(base)}

    here, other = (Store(url, tmp_path / name) for name in ("a", "b"))
    yield here, other, there, partial(put, files, base)
    with suppress(FileNotFoundError):
        files.rm(base, recursive=True)


def put(files, base, name, text):
    files.makedirs(f"{base}/{name}".rpartition("/")[0], exist_ok=True)
    files.pipe_file(f"{base}/{name}", text.encode())


def write(folder, **texts):
    for name, text in texts.items():
        file = folder / name.replace("__", "/").replace("OWN", ".csada")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def content(folder):
    """All but the index and locks."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {n: p.read_text() for n, p in found.items() if not (n.startswith(".csada/store/") or n.endswith("/lock"))}


def test_what_is_new_or_changed_is_exchanged_and_nothing_twice(pair, monkeypatch):
    here, other, there, _ = pair
    write(here.root, run__result="1", run__OWN__checkpoint="2", OWN__epoch="3")
    here.push()
    assert there() == content(here.root) == {"run/result": "1", "run/.csada/checkpoint": "2", ".csada/epoch": "3"}
    assert other.pull() == 3 and content(other.root) == there()

    moved = []
    monkeypatch.setattr(module, "_each", lambda work, names, _: moved.extend(names))
    for store in (here, other, Store(here.url, here.root)):  # also another process, which has the index alone
        store.pull()
        store.push()
    assert not moved
    monkeypatch.undo()

    write(other.root, run__result="one more")
    other.push()
    here.pull()
    assert content(here.root) == there() == content(other.root) and there()["run/result"] == "one more"


def test_scratch_alone_is_removed_at_one_side_after_it_was_removed_at_the_other(pair):
    here, other, there, _ = pair
    write(here.root, run__OWN__checkpoint="1", run__logits="2")
    here.push()
    other.pull()
    (here.root / "run/.csada/checkpoint").unlink()
    here.pull()  # does not bring it back
    (here.root / "run/logits").unlink()
    here.push()
    assert there() == {"run/logits": "2"}
    other.pull()
    here.pull()  # a result that is missing is fetched again
    assert content(other.root) == content(here.root) == there()


def test_a_folder_that_was_replaced_as_a_whole_leaves_no_scratch_at_the_url(pair, tmp_path):
    here, _, there, _ = pair
    write(here.root, OWN__checkpoint="1")
    here.push()
    here.root.rename(tmp_path / "old")
    here.push()
    assert there() == {}


def test_a_run_gets_and_gives_its_own_scratch_and_progress_is_fetched_alone(pair):
    here, other, there, _ = pair
    write(here.root, a__OWN__epoch="1 2", a__OWN__checkpoint="a", b__OWN__checkpoint="b", base__result="3")
    here.push(here.root / "a/.csada/epoch")
    assert there().keys() == {"a/.csada/epoch", "a/.csada/checkpoint", "base/result"}
    here.push()
    other.pull(other.root / "a/.csada/epoch", only=True)
    assert content(other.root) == {"a/.csada/epoch": "1 2"}
    other.pull(other.root / "a/.csada/epoch")
    assert content(other.root).keys() == {"a/.csada/epoch", "a/.csada/checkpoint", "base/result"}


def test_what_belongs_to_a_machine_is_not_exchanged(pair, tmp_path):
    here, other, there, put = pair
    names = ["run/.csada/lock", "run/.file.0123456789ab.tmp", "run/.model.csada/new/model.json", ".csada/store/x.json"]
    for name in [*names, "other/file", "run/file", ".csada/epoch"]:
        write(here.root, **{name.replace(".csada/", "OWN__"): name})
    (here.root / "run/link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("not for strangers")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", file="nor this")
    (here.root / "run/folder").symlink_to(tmp_path / "folder")
    some = Store(here.url, here.root, ("run",))
    some.push()
    assert there().keys() == {"run/file", ".csada/epoch"}
    for name in names:
        put(name, "from elsewhere")
    other.pull()
    assert content(other.root).keys() == {"run/file", ".csada/epoch"}


def test_what_says_that_a_run_is_done_comes_last_and_the_first_one_stays(pair, monkeypatch):
    here, other, there, _ = pair
    order, put = [], module._put
    monkeypatch.setattr(
        module, "_put", lambda files, local, target: (order.append(local.name), put(files, local, target))
    )
    names = {"run__result.json": "", "run__model__model.json": "", "run__z": "", "run__model__weights": ""}
    write(here.root, **{name: "here" for name in names})
    write(other.root, **{name: "other" for name in names})
    here.push()
    assert order[2:] == ["model.json", "result.json"]
    other.push()
    assert set(there().values()) == {"here"}
    other.pull()
    assert set(content(other.root).values()) == {"here"}


def test_a_file_that_grows_meanwhile_waits_for_the_next_time_and_a_failure_leaves_nothing_half(pair, monkeypatch):
    here, _, there, put = pair
    put("run/history", "one line")
    files = type(fsspec.url_to_fs(here.url)[0])
    get = files.get_file

    def grown(self, source, target, **options):
        put("run/history", "one line, another")
        get(self, source, target, **options)

    def full(self, source, target, **options):
        get(self, source, target, **options)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "get_file", grown)
        here.pull()
        assert content(here.root) == {}
    with monkeypatch.context() as patch:
        patch.setattr(files, "get_file", full)
        with pytest.raises(
            RunError, match="cannot exchange files: No space left on device; correct that, and the same"
        ):
            here.pull()
        assert content(here.root) == {}
    here.pull()
    assert content(here.root) == there() == {"run/history": "one line, another"}


@pytest.mark.parametrize("name", ["../../evil", "run/../../evil", "//etc/evil", "run/./evil"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, monkeypatch, name):
    """As object stores can hold them."""
    files, base = fsspec.url_to_fs(url := f"memory://{uuid4().hex}")
    listed = {f"{base}/{name}": {"name": name, "size": 1, "type": "file"}}
    monkeypatch.setattr(type(files), "find", lambda *_, **__: listed)
    with pytest.raises(RunError, match="which no folder can hold; remove it"):
        Store(url, tmp_path / "a" / "b").pull()
    assert not list(tmp_path.rglob("evil"))


def test_a_link_in_the_folder_is_not_followed(pair, tmp_path):
    here, _, _, put = pair
    put("run/file", "from elsewhere")
    here.root.mkdir()
    (tmp_path / "outside").mkdir()
    (here.root / "run").symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="run is a link, or behind one; remove it"):
        here.pull()
    assert not list((tmp_path / "outside").iterdir())


def test_what_is_too_much_is_refused(pair, monkeypatch):
    here, _, _, put = pair
    put("a", "123")
    put("b", "1")
    for bound, what in (("weights=2", "a has 3 bytes; at most 2"), ("stored=1", "holds 2 files; at most 1")):
        monkeypatch.setenv(VARIABLE, bound)
        with pytest.raises(InputError, match=what):
            here.pull()


def test_a_store_that_is_silent_or_refuses_is_one_line_without_its_password(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ANSWER", 0.2)
    stop = threading.Event()
    url, secret = "sftp://me:secret@host/runs", "secret"
    for remote, why in (
        (lambda _: stop.wait(60), "no answer within 0.2 seconds"),
        (lambda _: 1 / 0, "division by zero"),  # their libraries raise anything
    ):
        monkeypatch.setattr(module, "remote", remote)
        with pytest.raises(RunError, match=f"^sftp://host/runs and {tmp_path} cannot exchange files: {why}") as error:
            Store(url, tmp_path).pull()
        assert secret not in str(error.value)
    stop.set()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--store", "file:///nowhere"),
            "--store is for the nodes of a Ray cluster: add --engine ray, or leave it out",
        ),
        (("--engine", "ray", "--store", "bucket/sweep"), "--store bucket/sweep is no URL; write s3://BUCKET/FOLDER"),
        (("--engine", "ray", "--store", "s4://me:secret@bucket"), "s4://bucket cannot be read: Protocol not known: s4"),
        (
            ("--engine", "ray", "--store", "gs://me:secret@bucket/x"),
            "gs://bucket/x cannot be read: Please install gcsfs",
        ),
        (("--engine", "ray", "--store", "file:///dev/null/x"), "cannot exchange files: Not a directory; correct that"),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # an import then fails
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results")
    run = inside("reproduce", sweep(tmp_path), "--scale", "smoke", *places, *words)
    assert run.returncode and len(run.stderr.splitlines()) == 1 and message in run.stderr, run.stderr


# -- nodes that share no folder --------------------------------------------------------------------


class Apart:
    """Nodes with one core each, which see an empty folder of their own where the driver has `folder`."""

    def __init__(self, head, rays, folder):
        self.head, self.rays, self.folder, self.nodes = head, rays, folder, []

    def add(self):
        words = "start", f"--address={self.head.address}", "--block", "--num-cpus=1", "--object-store-memory=80000000"
        inside_it = "mount -t tmpfs none $0 && exec $@"
        node = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inside_it]
        more = [self.folder, Path(sys.executable).parent / "ray", *words]
        own = subprocess.Popen([*node, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.nodes.append(own)
        for line in own.stdout:
            print(line, end="")
            if "runtime started" in line:
                return
        pytest.fail("a node did not start")

    def kill(self):
        """As a power cut would: nothing in it ends well."""
        node = self.nodes.pop()
        node.kill()
        node.communicate()

    def at_work(self):
        """Processes that do a run."""
        found = set()
        for number in of_ray(self.rays):
            with suppress(OSError):
                if Path(f"/proc/{number}/cmdline").read_bytes().startswith(b"ray::do"):
                    found.add(number)
        return found


@pytest.fixture(scope="module")
def apart():
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    with suppress(OSError):
        allowed = subprocess.run(["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True)
        allowed = allowed.returncode == 0
    if not allowed:
        pytest.skip("a node with a folder of its own needs root, and unshare")
    here = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory(ignore_cleanup_errors=True) as rays,
        TemporaryDirectory() as folder,
    ):
        for name, value in (QUIET | {"PYTHONPATH": here, "RAY_TMPDIR": rays}).items():  # of the nodes
            patch.setenv(name, value)
        head = Cluster(initialize_head=True, head_node_args=SMALL | {"num_cpus": 0, "include_dashboard": False})
        made = Apart(head, rays, folder)
        try:
            made.add()
            made.add()
            patch.setenv("RAY_ADDRESS", head.address)
            yield made
        finally:
            while made.nodes:
                made.kill()
            head.shutdown()
        assert not gone(partial(of_ray, rays))


def through(url, spec, folder):
    return start(spec, folder, "--engine", "ray", "--store", url.as_uri(), address=os.environ["RAY_ADDRESS"])


def test_a_node_and_the_driver_die_and_another_driver_ends_the_sweep_with_the_same_records(apart, tmp_path):
    spec, url, whole = sweep(tmp_path, epochs=60, matrices=2), tmp_path / "url" / "runs", tmp_path / "whole"
    broken = Path(apart.folder) / "broken"

    def done():
        return {path.parent.name for path in url.glob("*/*/result.json")}

    def under_way():
        return {path.parent.name for path in url.glob("sweep/*/history.jsonl")} - done()

    process = through(url, spec, broken)
    wait_for(lambda: under_way() and len(under_way() | done()) > 2, process)  # as a rule, one on each node
    first = done()
    apart.kill()
    wait_for(lambda: done() > first and under_way(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not gone(apart.at_work)  # workers outlive it for a moment, and may end a run or begin one
    second, started = done(), starts(url.parent)
    assert first and len(second) < 5
    shutil.rmtree(broken)  # the other driver has nothing

    apart.add()
    assert "0 left, 0 failed" in finished(through(url, spec, broken))
    run_here(spec, whole)
    assert numbers(broken) == numbers(whole)
    assert starts(broken) == {name: started.get(name, 0) + (name not in second) for name in done()}
    assert not list(url.rglob("epoch")) and not list(url.rglob("checkpoint*"))


def test_a_url_that_leads_nodes_elsewhere_is_named(apart, monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE", 2)
    folder = Path(apart.folder)
    url, done = f"file://{folder}/url", []
    tasks = [Task("a", threads, done.append, folder / "runs" / "a", 1)]
    failed = carry_out([tasks], Engine("ray", store=Store(url, folder / "runs")))
    assert not done and f"finds nothing at {url}; give a URL that leads all nodes to the same files" in str(failed["a"])


def confusions(out):
    return [run.confusion for run in read_json(out / FILE, Comparison).runs]


def weights(out):
    return (out / "model.safetensors").read_bytes()


def test_other_commands_decide_through_a_store_what_they_decide_here(apart, tmp_path):
    folder, data = Path(apart.folder), ("digits", "--scale", "0.3", "--costs", "pareto:0")
    assert inside("train", *data[:3], "--model", "mlp", "--epochs", "3", "--out", tmp_path / "m").returncode == 0
    for words, result, kept in (
        (("compare", *data, "--methods", "penalty", "--seeds", "1", "--epochs", "1"), confusions, {FILE}),
        (("fit", tmp_path / "m", *data, "--members", "2", "--epochs", "1"), weights, set()),
    ):
        found, url = [], tmp_path / "url" / words[0]
        through_it = "--workers", "1", "--engine", "ray", "--store", url.as_uri()
        for out, more in ((tmp_path / words[0], ()), (folder / words[0], through_it)):
            run = inside(*words, "--out", out, *more)
            assert run.returncode == 0, run.stderr
            found.append(result(out))
        assert found[0] == found[1]
        there = {path.relative_to(url).as_posix() for path in url.rglob("*") if path.is_file()}
        assert there == kept  # no checkpoint is left
