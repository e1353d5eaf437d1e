"""The same batch on one process, on two, or in pieces gives the same update; a rank that dies ends the run with a message."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from strategies import mlp
from torch import nn
from torch.utils.data import TensorDataset

import csada
from csada.errors import RunError
from csada.methods.csada import ESTIMATORS, Tasks
from csada.training.checkpoints import read_checkpoint
from csada.training.parallel import place

COSTS = csada.CostMatrix([[0, 4.0, 1.0, 0], [2.0, 0, 0, 1.0], [0, 3.0, 0, 5.0], [0, 0, 0, 0]])
ATTACK = {"epsilon": 0.5, "step_size": 0.05, "steps": 3, "weight": 2.5}
CASES = {name: (name, {}) for name in csada.METHODS if name != "mixup"} | {  # which mixes within a piece
    f"csada {estimator}": ("csada", {"estimator": estimator, "tasks": 7} | ATTACK) for estimator in ESTIMATORS
}


def problem():
    """Batches of 12, 12 and 1, in double precision: the last leaves one of two ranks without a sample."""
    x = torch.randn(25, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return mlp(), (x, torch.arange(25) % 4)


def fitted(case, **options):
    method, own = CASES[case]
    model, data = problem()
    return csada.fit(
        model, data, method, COSTS, **{"epochs": 2, "lr": 0.05, "batch_size": 12, "seed": 3} | own | options
    )


def weights(fitted):
    return torch.cat([v.flatten().double() for v in fitted.model.state_dict().values()])


def losses(fitted):
    return torch.tensor([line["loss"] for line in fitted.history], dtype=torch.float64)


def assert_same(one, other):
    assert (one[0] - other[0]).abs().max() < 1e-9 and (one[1] - other[1]).abs().max() < 1e-9


@pytest.mark.parametrize("case", CASES)
def test_in_pieces_the_update_is_that_of_the_whole_batch(case):
    whole, pieces = fitted(case), fitted(case, max_batch=5)
    assert_same((weights(whole), losses(whole)), (weights(pieces), losses(pieces)))


class Small(nn.Module):
    """A device whose memory holds a few samples, and whose running mean shows every forward pass that was made."""

    def __init__(self, net, room):
        super().__init__()
        self.net, self.room = net, room
        self.norm = nn.BatchNorm1d(5, affine=False, dtype=torch.float64)

    def forward(self, x):
        self.norm(x)
        if len(x) > self.room:
            raise torch.OutOfMemoryError("out of memory")
        return self.net(x)


def test_auto_halves_until_it_fits_and_leaves_no_trace_of_what_did_not():
    model, data = problem()
    run = lambda room, **kw: csada.fit(  # noqa: E731
        Small(model, room), data, "pgd_training", COSTS, epochs=1, lr=0.05, batch_size=25, freeze_norm=False, **kw
    )
    whole, auto, asked = run(25), run(8, max_batch="auto"), run(25, max_batch=7)
    assert (weights(auto) - weights(asked)).abs().max() == 0  # 25 -> 13 -> 7
    of_net = lambda f: torch.cat([p.flatten() for p in f.model.parameters()])  # noqa: E731
    assert (of_net(whole) - of_net(auto)).abs().max() < 1e-9
    with pytest.raises(torch.OutOfMemoryError):
        run(8, max_batch=20)
    with pytest.raises(torch.OutOfMemoryError):
        run(8)


def test_padding_counts_nothing():
    model, (x, y) = problem()
    for estimator in ("paper", "unbiased", "class_mean", "full"):
        method = csada.METHODS["csada"](COSTS, estimator=estimator, **ATTACK)
        tasks = method.draw(y, torch.Generator().manual_seed(1))
        padded = tasks.padded(32)
        assert len(tasks.sample) % 32 and len(padded.sample) % 32 == 0
        assert torch.allclose(method.loss(model, x, y, tasks), method.loss(model, x, y, padded), atol=1e-12)
    none = Tasks(*(torch.zeros(0, dtype=torch.long),) * 3)
    assert len(none.padded(32).sample) == 0


SCRIPT = """
import os, sys, torch, csada, csada.errors
sys.path.insert(0, sys.argv[1])
import test_parallel as t
rank, told = os.environ["RANK"], []
torch.manual_seed(int(rank))
result = {}
for case in t.CASES:
    f = t.fitted(case, devices=2, on_epoch=lambda line, model: told.append(line["epoch"]) or {"rank": rank})
    assert all(line["rank"] == "0" for line in f.history)
    result[case] = t.weights(f), t.losses(f)
assert len(told) == (2 * len(t.CASES) if rank == "0" else 0)
result["other weights"] = t.weights(csada.fit(t.mlp(seed=int(rank)), t.problem()[1], "csada", t.COSTS, epochs=1)), None
for caught, options, data in (
    (csada.errors.Diverged, {"lr": 1e300}, t.problem()[1]),
    (csada.InputError, {}, (torch.randn(9, 5).double(), torch.arange(9) % 4 if rank == "0" else torch.arange(9) % 3)),
):
    try:
        csada.fit(t.mlp(), data, "cross_entropy", epochs=20, **options)
        raise SystemExit("not refused")
    except caught as error:
        result[caught.__name__] = str(error)
        if caught is csada.errors.Diverged:
            assert all(p.isfinite().all() for p in error.fitted.model.parameters())
torch.save(result, sys.argv[2] + rank)
"""


def run_script(path, text, *arguments, processes=None, timeout=180):
    path.write_text(text)
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"] if processes else []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *torchrun, str(path), *map(str, arguments)]
    return subprocess.run(command, env=environment, timeout=timeout, capture_output=True, text=True, check=False)


def test_two_processes_of_torchrun_make_the_update_of_one(tmp_path):
    """Every method and every estimator, over batches that divide unevenly, one of them smaller than the ranks."""
    done = run_script(tmp_path / "run.py", SCRIPT, Path(__file__).parent, tmp_path / "out", processes=2)
    assert done.returncode == 0, done.stderr
    ranks = [torch.load(f"{tmp_path / 'out'}{rank}") for rank in (0, 1)]
    for case in CASES:
        alone = fitted(case)
        for rank in ranks:
            assert_same((weights(alone), losses(alone)), rank[case])
        assert torch.equal(ranks[0][case][0], ranks[1][case][0]) and torch.equal(ranks[0][case][1], ranks[1][case][1])
    assert all("the processes were given different data" in rank["InputError"] for rank in ranks)
    assert all("the loss became" in rank["Diverged"] for rank in ranks)
    assert torch.equal(ranks[0]["other weights"][0], ranks[1]["other weights"][0])  # rank 0's are taken


class Mortal(nn.Module):
    """Dies on rank 1, as the kernel kills what takes too much memory, once a checkpoint exists and while `doom` does."""

    def __init__(self, net, doom, checkpoint):
        super().__init__()
        self.net, self.doom, self.checkpoint = net, doom, checkpoint

    def forward(self, x):
        if os.environ.get("RANK") == "1" and self.doom.exists() and self.checkpoint.exists():
            if os.environ.get("GROUP_WORLD_SIZE") == "2":  # the node: torchrun goes too
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)


def test_a_dead_rank_ends_the_run_and_a_restart_resumes_it(tmp_path):
    """Ranks that `fit` starts by itself, from inside a function; the model comes back to the caller."""
    model, data = problem()
    doom, checkpoint = tmp_path / "doom", tmp_path / "run.pt"
    doom.touch()
    kw = {"epochs": 6, "lr": 0.05, "batch_size": 12, "estimator": "unbiased", **ATTACK}
    mortal, seen = Mortal(model, doom, checkpoint), []

    def on_epoch(line, net):
        assert not net.training and os.environ.get("RANK") is None
        seen.append((line["epoch"], csada.evaluate(net, data, COSTS).total_cost))
        return {"cost": seen[-1][1]}

    began = time.monotonic()
    with pytest.raises(RunError, match=r"rank 1 of the run ended with SIGKILL; start it again to resume from .*run.pt"):
        csada.fit(mortal, data, "csada", COSTS, devices=2, checkpoint=checkpoint, **kw)
    assert (
        time.monotonic() - began < 240
    )  # of which nearly all is starting up; ranks wait for each other for 30 minutes
    kept = len(read_checkpoint(checkpoint).history)
    assert 0 < kept < 6
    doom.unlink()
    resumed = csada.fit(mortal, data, "csada", COSTS, devices=2, checkpoint=checkpoint, on_epoch=on_epoch, **kw)
    alone = csada.fit(mortal, data, "csada", COSTS, **kw)
    assert_same((weights(alone), losses(alone)), (weights(resumed), losses(resumed)))
    assert [epoch for epoch, _ in seen] == list(range(kept + 1, 7))
    assert seen[-1][1] == resumed.history[-1]["cost"] == csada.evaluate(resumed.model, data, COSTS).total_cost


NODE = """
import os, sys, torch, csada
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_parallel as t
folder = Path(sys.argv[2])
model, data = t.problem()
model = t.Mortal(model, folder / "doom", folder / "run.pt")
f = csada.fit(model, data, "csada", t.COSTS, devices=1, num_nodes=2, checkpoint=folder / "run.pt", **t.LONGER)
torch.save((t.weights(f), t.losses(f)), folder / f"out{os.environ['RANK']}")
"""
LONGER = {"epochs": 6, "lr": 0.05, "batch_size": 12, "estimator": "unbiased", **ATTACK}


def test_a_node_of_two_dies_and_both_started_again_make_the_update_of_one_process(tmp_path):
    """Two torchrun, as on two machines, which meet at a port of the loopback interface."""
    (tmp_path / "run.py").write_text(NODE)

    def nodes():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"]
        command += ["--master_addr=127.0.0.1", f"--master_port={port}"]
        own = [str(tmp_path / "run.py"), str(Path(__file__).parent), str(tmp_path)]
        quiet = {"env": os.environ | {"OMP_NUM_THREADS": "1"}, "stderr": subprocess.PIPE, "text": True}
        started = [subprocess.Popen([*command, f"--node_rank={n}", *own], **quiet) for n in (0, 1)]
        try:
            told = [process.communicate(timeout=180)[1] for process in started]
        finally:
            for process in started:
                process.kill()
        return [process.returncode for process in started], told

    (tmp_path / "doom").touch()
    codes, _ = nodes()
    assert codes[0] not in (0, None) and codes[1] == -signal.SIGKILL
    kept = len(read_checkpoint(tmp_path / "run.pt").history)
    assert 0 < kept < 6 and not (tmp_path / "out0").exists()
    (tmp_path / "doom").unlink()
    codes, told = nodes()
    assert codes == [0, 0], told
    model, data = problem()
    alone = csada.fit(Mortal(model, tmp_path, tmp_path), data, "csada", COSTS, **LONGER)
    for rank in (0, 1):
        assert_same((weights(alone), losses(alone)), torch.load(tmp_path / f"out{rank}"))


def test_a_script_without_a_guard_ends_with_the_way_out(tmp_path):
    data = "(torch.zeros(8, 2), torch.arange(8) % 2)"
    text = f"import torch, csada\ncsada.fit(torch.nn.Linear(2, 2), {data}, 'cross_entropy', devices=2)\n"
    done = run_script(tmp_path / "run.py", text)
    assert done.returncode != 0 and 'put its work under if __name__ == "__main__"' in done.stderr
    assert "RunError: a process of the run failed" in done.stderr


def test_what_cannot_be_shared_out_is_refused(monkeypatch):
    model, (x, y) = problem()
    run = lambda data=(x, y), model=model, **kw: csada.fit(model, data, "cross_entropy", **kw)  # noqa: E731
    with pytest.raises(csada.InputError, match="give \\(x, y\\), a Part or Splits, not a TensorDataset"):
        run(TensorDataset(x, y), devices=2)
    with pytest.raises(csada.InputError, match="devices must be at least 1, got 0"):
        run(devices=0)
    with pytest.raises(csada.InputError, match="num_nodes=2: start your script on every node with torchrun --nnodes=2"):
        run(devices=4, num_nodes=2)
    with pytest.raises(csada.InputError, match="max_batch must be a number of samples or 'auto', got 0"):
        run(max_batch=0)
    local = type("Local", (nn.Linear,), {})(5, 4, dtype=torch.float64)
    with pytest.raises(csada.InputError, match="cannot be handed to other processes"):
        run(model=local, devices=2)
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert [place(None, 1, x.device), place(2, 2, x.device), place(1, 1, x.device)] == ["join", "join", "alone"]
    with pytest.raises(csada.InputError, match="devices=3 times num_nodes=1 are not the 4 processes"):
        run(devices=3)
