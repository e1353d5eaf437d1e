import copy
import hashlib
import io
import os
import random
import signal
import time
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from program import server
from strategies import conv, mlp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import csada
from csada.errors import Diverged
from csada.training import Settings, split_options
from csada.training.checkpoints import MAGIC, read_checkpoint

COSTS = csada.CostMatrix.pareto(4, seed=0)


def problem(n=64):
    g = torch.Generator().manual_seed(0)
    return conv(dtype=torch.float32), torch.randn(n, 2, 4, 4, generator=g), torch.arange(n) % 4


def weights(fitted):
    return torch.cat([v.flatten().double() for v in fitted.model.state_dict().values()])


def losses(fitted):
    return [line["loss"] for line in fitted.history]


class Noisy(TensorDataset):
    """A data set whose samples depend on every global random state, as users' transforms do."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.1 * (torch.rand(()) + random.random() + np.random.rand()), y  # noqa: NPY002


@pytest.mark.parametrize("kind", ["tensors", "arrays", "splits", "dataset", "loader", "loader-with-generator"])
def test_takes_every_kind_of_data_and_is_reproducible_from_its_seed(kind):
    model, x, y = problem()
    part = csada.Part(x, y)
    own = torch.Generator().manual_seed(5)
    data = {
        "tensors": (x, y),
        "arrays": (x.numpy(), y.numpy()),
        "splits": csada.Splits(part, part, part, COSTS.classes),
        "dataset": Noisy(x, y),
        "loader": DataLoader(Noisy(x, y), batch_size=16, shuffle=True),
        "loader-with-generator": DataLoader(Noisy(x, y), batch_size=16, shuffle=True, generator=own),
    }[kind]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), own.get_state()  # noqa: NPY002
    run = lambda seed: csada.fit(model, data, "csada", COSTS, epochs=2, lr=0.01, batch_size=16, seed=seed, tasks=8)  # noqa: E731
    one, two, three = run(3), run(3), run(4)
    assert torch.equal(weights(one), weights(two)) and losses(one) == losses(two)
    assert not torch.equal(weights(one), weights(three))
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all() and torch.equal(own.get_state(), states[3])  # noqa: NPY002


def loader(x, y):
    return DataLoader(TensorDataset(x, y), batch_size=8)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (lambda x, y: (x.double().numpy(), y.numpy()), lambda x, y: (x, y)),
        (lambda x, y: (x, y.int().numpy()), lambda x, y: (x, y)),
        (lambda x, y: csada.Part(x.double(), y.int()), lambda x, y: (x, y)),
        (lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(y.numpy())), lambda x, y: (x, y)),
        (lambda x, y: loader(x.double(), y.int()), loader),
    ],
    ids=["float64 arrays", "int32 labels", "a part", "pandas", "a loader"],
)
def test_data_of_other_types_is_brought_to_the_model(given, same):
    model = mlp(dtype=torch.float32)
    x, y = torch.randn(24, 5, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4
    for method in ("csada", "metacost") if isinstance(same(x, y), tuple) else ("csada", "auxcst", "csdnn"):
        run = lambda data, m=method: csada.fit(model, data, m, COSTS, epochs=1, lr=0.1, batch_size=8)  # noqa: E731
        assert torch.equal(weights(run(given(x, y))), weights(run(same(x, y))))
    got, expected = (csada.predict_logits(model, data(x, y)) for data in (given, same))
    assert torch.equal(got.logits, expected.logits) and torch.equal(got.labels, y)
    assert csada.evaluate(model, given(x, y), COSTS).total_cost == csada.evaluate(model, (x, y), COSTS).total_cost


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda x, y: DataLoader(TensorDataset(x, y, y), batch_size=8), r"a list of 3; give one of \(x, y\)"),
        (lambda x, y: DataLoader([{"x": x[0], "y": 1}]), r"a dict; give one of \(x, y\)"),
        (lambda x, y: (pd.DataFrame({"a": ["b"] * len(y)}), y), "samples are object; give numbers"),
        (lambda x, y: (x, pd.Series(["b"] * len(y))), "labels are (str|object); give numbers"),
    ],
)
def test_data_that_cannot_be_read_is_refused_in_one_line_everywhere(data, message):
    model, data = mlp(dtype=torch.float32), data(torch.randn(16, 5), torch.arange(16) % 4)
    for call in (csada.fit, csada.evaluate, csada.predict_logits):
        with pytest.raises(csada.InputError, match=message):
            call(model, data, **{} if call is csada.predict_logits else {"costs": COSTS})


def test_what_the_caller_owns_is_left_alone():
    """Evaluating leaves nothing behind that a gradient would stumble over, and training writes no gradient of theirs."""
    model = mlp(dtype=torch.float32)
    x, y = torch.randn(16, 5, requires_grad=True), torch.arange(16) % 4
    part = csada.Part(x, y, csada.data.Normalization(mean=(0.123,), std=(2.0,)))
    csada.evaluate(model, part, COSTS)
    for data in (part, (x, y), [(x[i], y[i]) for i in range(16)]):
        csada.fit(model, DataLoader(data, batch_size=8) if isinstance(data, list) else data, "csada", COSTS, epochs=1)
    assert x.grad is None
    part.batch(torch.arange(16)).x.sum().backward()
    assert torch.allclose(x.grad, torch.full_like(x, 0.5))


def test_cross_entropy_learns_and_on_epoch_joins_the_history():
    model, x, y = problem()
    seen = []

    def on_epoch(line, net):
        assert not net.training
        seen.append(line["epoch"])
        return {"accuracy": csada.evaluate(net, (x, y), COSTS).accuracy}

    fitted = csada.fit(model, (x, y), "cross_entropy", epochs=40, lr=0.05, batch_size=16, on_epoch=on_epoch)
    assert seen == list(range(1, 41))
    assert fitted.history[-1]["loss"] < 0.5 * fitted.history[0]["loss"]
    assert fitted.history[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_descends_as_torchs_own_optimiser_would(optimizer):
    """Three epochs of one batch each are three steps of the loop that anybody would write."""
    model, x, y = problem()
    model, x = model.double(), x.double()
    model[3].p = 0.0
    kw = {"lr": 0.02, "weight_decay": 0.01}
    fitted = csada.fit(
        model, (x, y), "cross_entropy", epochs=3, batch_size=64, optimizer=optimizer, nesterov=optimizer == "sgd", **kw
    )
    mine = copy.deepcopy(model).train()
    make = {
        "sgd": lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True, **kw),
        "adam": lambda p: torch.optim.Adam(p, **kw),
    }
    steps = make[optimizer](mine.parameters())
    for _ in range(3):
        steps.zero_grad()
        nn.functional.cross_entropy(mine(x), y).backward()
        steps.step()
    for a, b in zip(mine.parameters(), fitted.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_options_are_the_loops_or_the_methods():
    options = {"epochs": 3, "weight": 2.0, "max_batch": "auto", "tasks": 8, "epsilom": 1}
    settings = {"epochs": 3, "max_batch": "auto"}
    assert split_options(options) == (settings, {"weight": 2.0, "tasks": 8, "epsilom": 1})
    assert Settings(**settings).epochs == 3


def test_schedules():
    at = lambda schedule, step: Settings(epochs=10, lr=1.0, schedule=schedule).lr_at(step, 100)  # noqa: E731
    assert [at("constant", s) for s in (0, 999)] == [1.0, 1.0]
    assert [round(at("step:3:0.33", s), 4) for s in (0, 299, 300, 600, 900)] == [1, 1, 0.33, 0.1089, 0.0359]
    cycle = [at("one_cycle", s) for s in range(1000)]
    assert max(cycle) == cycle[300] == 1.0 and cycle[0] == 0.04 and cycle[-1] < 1e-4
    assert all(b >= a for a, b in pairwise(cycle[:301]))
    assert all(b <= a for a, b in pairwise(cycle[300:]))


def test_batch_norm_is_frozen_when_fine_tuning_and_learns_under_cross_entropy():
    model, x, y = problem()
    made = csada.METHODS["cross_entropy"](COSTS)
    for method, frozen in (("cross_entropy", False), (made, False), ("csada", True), ("adjusted_penalty", True)):
        fitted = csada.fit(model, (x, y), method, COSTS, epochs=1, lr=0.01, batch_size=16)
        assert torch.equal(fitted.model[1].running_mean, model[1].running_mean) == frozen
    thawed = csada.fit(model, (x, y), "csada", COSTS, epochs=1, lr=0.01, batch_size=16, freeze_norm=False)
    assert not torch.equal(thawed.model[1].running_mean, model[1].running_mean)


def test_frozen_parameters_stay():
    model, x, y = problem()
    model[0].requires_grad_(False)
    fitted = csada.fit(model, (x, y), "csada", COSTS, epochs=1, lr=0.1, batch_size=16)
    assert torch.equal(fitted.model[0].weight, model[0].weight)
    assert not torch.equal(fitted.model[5].weight, model[5].weight)


def test_bf16_trains_with_weights_kept_in_single():
    model, x, y = problem()
    fitted = csada.fit(model, (x, y), "csada", COSTS, epochs=2, lr=0.01, batch_size=16, precision="bf16")
    assert all(p.dtype == torch.float32 for p in fitted.model.parameters()) and np.isfinite(losses(fitted)).all()


def test_a_diverging_run_stops_and_keeps_the_last_good_weights():
    x, y = 1e3 * torch.randn(64, 5), torch.arange(64) % 4
    with pytest.raises(Diverged, match=r"loss became (nan|inf) in epoch \d+; lower lr") as caught:
        csada.fit(mlp(dtype=torch.float32), (x, y), "cross_entropy", epochs=50, lr=1e6, batch_size=16)
    kept = caught.value.fitted
    assert len(kept.history) < 50
    assert all(torch.isfinite(p).all() for p in kept.model.parameters())


def test_a_model_already_broken_is_refused():
    model, x, y = problem()
    with torch.no_grad():
        model[5].bias[0] = float("nan")
    with pytest.raises(csada.InputError, match="the model returned"):
        csada.fit(model, (x, y), "csada", COSTS)


def interrupted(path, model, data, stop_after, **kw):
    class Stop(Exception):
        pass

    def on_epoch(line, _):
        if line["epoch"] > stop_after:
            raise Stop

    with pytest.raises(Stop):
        csada.fit(model, data, "csada", COSTS, checkpoint=path, on_epoch=on_epoch, **kw)


def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_bits(tmp_path):
    model, x, y = problem()
    kw = {"epochs": 5, "lr": 0.01, "batch_size": 16, "schedule": "one_cycle", "seed": 2}
    whole = csada.fit(model, (x, y), "csada", COSTS, **kw)
    interrupted(tmp_path / "run.pt", model, (x, y), 2, **kw)
    resumed = csada.fit(model, (x, y), "csada", COSTS, checkpoint=tmp_path / "run.pt", **kw)
    assert torch.equal(weights(whole), weights(resumed)) and losses(whole) == losses(resumed)


def frozen(model):
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("other", "change"),
    [
        ("settings", lambda m, x, y: {"lr": 0.02}),
        ("method", lambda m, x, y: {"weight": 3.0}),
        ("method", lambda m, x, y: {"costs": csada.CostMatrix.pareto(4, seed=1)}),
        ("start weights", lambda m, x, y: {"model": conv(seed=1, dtype=torch.float32)}),
        ("start weights", lambda m, x, y: {"model": frozen(copy.deepcopy(m))}),
        ("data", lambda m, x, y: {"data": (x + 1e-3, y)}),
        ("data", lambda m, x, y: {"data": (x, y.flip(0))}),
        ("data", lambda m, x, y: {"data": csada.Part(x, y, csada.data.Normalization(std=(2.0,)))}),
        ("data", lambda m, x, y: {"data": DataLoader(TensorDataset(x, y), batch_size=16)}),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_says_what_differs(tmp_path, other, change):
    model, x, y = problem(32)
    run = {"model": model, "data": (x, y), "method": "csada", "costs": COSTS, "epochs": 1, "batch_size": 16}
    csada.fit(**run, checkpoint=tmp_path / "run.pt")
    with pytest.raises(csada.InputError, match=f"run.pt is a checkpoint of another run, with other {other}; remove it"):
        csada.fit(**run | change(model, x, y), checkpoint=tmp_path / "run.pt")


def test_a_loader_of_other_samples_is_another_run(tmp_path):
    model, x, y = problem(32)
    run = lambda x: csada.fit(  # noqa: E731
        model, DataLoader(Noisy(x, y), batch_size=16, shuffle=True), "csada", COSTS, epochs=1, checkpoint=tmp_path / "c"
    )
    once = run(x)
    assert torch.equal(weights(once), weights(run(x)))
    with pytest.raises(csada.InputError, match="with other data"):
        run(x + 1)


def test_what_on_epoch_returns_comes_back_as_plain_numbers(tmp_path):
    model, x, y = problem(16)
    run = {"epochs": 1, "checkpoint": tmp_path / "run.pt"}
    more = {"a": np.float32(0.5), "b": np.arange(2), "c": torch.tensor(3.0), "d": {"e": [np.int64(1), None, "f"]}}
    csada.fit(model, (x, y), "csada", COSTS, on_epoch=lambda *_: more, **run)
    (line,) = csada.fit(model, (x, y), "csada", COSTS, **run).history
    kept = {name: line[name] for name in more}
    assert kept == {"a": 0.5, "b": [0, 1], "c": 3.0, "d": {"e": [1, None, "f"]}} and type(kept["a"]) is float
    with pytest.raises(csada.InputError, match=r"on_epoch returned what a checkpoint cannot hold.*CostMatrix"):
        csada.fit(model, (x, y), "csada", COSTS, on_epoch=lambda *_: {"x": COSTS}, epochs=1, checkpoint=tmp_path / "2")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_checkpoint_starts_anew_and_says_so(tmp_path, damage, caplog):
    model, x, y = problem(16)
    run = lambda: csada.fit(model, (x, y), "csada", COSTS, epochs=2, lr=0.01, checkpoint=tmp_path / "run.pt")  # noqa: E731
    whole = run()
    content = (tmp_path / "run.pt").read_bytes()
    where = len(content) // 2
    flipped = content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]
    (tmp_path / "run.pt").write_bytes({"truncated": content[:-100], "flipped": flipped, "empty": b""}[damage])
    assert not caplog.records
    assert torch.equal(weights(whole), weights(run())) and "run.pt is damaged: the run starts anew" in caplog.text
    caplog.clear()
    run()
    assert not caplog.records  # it was written anew


def changed(place, value):
    """The state with another value at that place; without one, without the place."""

    def change(state):
        *inside, last = place
        for key in inside:
            state = state[key]
        if value is None:
            del state[last]
        else:
            state[last] = value(state[last]) if callable(value) else value

    return change


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    "change",
    [
        changed(["origin"], {}),
        changed(["origin", "settings"], 3),
        changed(["origin", "strange"], ""),
        changed(["model"], None),
        changed(["model"], [1]),
        changed(["model", "0.weight"], lambda w: w[:1].clone()),
        changed(["model", "0.weight"], lambda w: w.to_sparse()),
        changed(["model", "0.weight"], lambda w: w * torch.nan),
        changed(["model", "0.weight"], lambda w: torch.ones(1).expand(2**30, 2**20)),
        changed(["model", "strange"], torch.zeros(1)),
        changed(["optimizer"], {}),
        changed(["optimizer", "state"], {}),
        changed(["optimizer", "state", 0], {"momentum_buffer": torch.zeros(1)}),
        changed(["optimizer", "state", 99], {}),
        changed(["history"], "3"),
        changed(["history"], "[]"),
        changed(["history"], '[{"epoch": "x"}]'),
        changed(["history"], "["),
        changed(["history"], 3),
        dict.clear,
    ],
)
def test_a_checkpoint_of_right_hash_and_other_content_starts_anew_and_says_so(tmp_path, change, optimizer, caplog):
    model, x, y = problem(16)
    kw = {"epochs": 2, "lr": 0.01, "optimizer": optimizer, "checkpoint": tmp_path / "run.pt"}
    whole = csada.fit(model, (x, y), "csada", COSTS, **kw)
    start = len(MAGIC) + 32
    state = torch.load(io.BytesIO((tmp_path / "run.pt").read_bytes()[start:]), weights_only=True)
    change(state)
    body = io.BytesIO()
    torch.save(state, body)
    (tmp_path / "run.pt").write_bytes(MAGIC + hashlib.sha256(body.getvalue()).digest() + body.getvalue())
    again = csada.fit(model, (x, y), "csada", COSTS, **kw)
    assert torch.equal(weights(whole), weights(again)) and "run.pt is damaged: the run starts anew" in caplog.text


def test_a_file_that_is_no_checkpoint_is_not_overwritten(tmp_path):
    model, x, y = problem(16)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    content = (tmp_path / "weights.pt").read_bytes()
    with pytest.raises(csada.InputError, match=r"weights.pt is not a checkpoint of csada; give another file"):
        csada.fit(model, (x, y), "csada", COSTS, epochs=1, checkpoint=tmp_path / "weights.pt")
    assert (tmp_path / "weights.pt").read_bytes() == content


def test_a_run_may_go_on_with_less_memory(tmp_path):
    """In pieces the update is the same, so that a checkpoint does not care."""
    model, x, y = problem()
    model, data = model.double(), (x.double(), y)
    model[3].p = 0.0
    kw = {"epochs": 4, "lr": 0.01, "batch_size": 16}
    whole = csada.fit(model, data, "csada", COSTS, **kw)
    interrupted(tmp_path / "run.pt", model, data, 2, **kw)
    resumed = csada.fit(model, data, "csada", COSTS, checkpoint=tmp_path / "run.pt", max_batch=5, **kw)
    assert len(resumed.history) == 4 and (weights(whole) - weights(resumed)).abs().max() < 1e-9


def fit_and_save(checkpoint, out):
    torch.set_num_threads(1)
    model, x, y = problem(256)
    options = {"epochs": 25, "lr": 0.01, "batch_size": 8}
    torch.save(weights(csada.fit(model, (x, y), "csada", COSTS, checkpoint=checkpoint, **options)), out)


def test_killed_at_any_moment_it_continues(tmp_path):
    """A real process, killed with SIGKILL in the middle of its work, then started again."""

    def start(name):
        process = server().Process(target=fit_and_save, args=(tmp_path / f"{name}.pt", tmp_path / f"{name}.out"))
        process.start()
        return process

    process, kept, deadline = start("a"), tmp_path / "a.pt", time.monotonic() + 120
    while process.is_alive() and not (kept.exists() and len(read_checkpoint(kept).history) > 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL and not (tmp_path / "a.out").exists()
    assert 0 < len(read_checkpoint(kept).history) < 25
    for again in [start(name) for name in "ab"]:
        again.join()
        assert again.exitcode == 0
    assert torch.equal(torch.load(tmp_path / "a.out"), torch.load(tmp_path / "b.out"))
    assert not [p for p in os.listdir(tmp_path) if p.endswith(".tmp") and "b.pt" in p]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"costs": csada.CostMatrix.uniform(5)}, "the model scores 4 classes but the costs name 5"),
        ({"method": csada.METHODS["csada"](csada.CostMatrix.uniform(5)), "costs": None}, "the method's costs name 5"),
        ({"data": (torch.zeros(0, 2, 4, 4), torch.zeros(0, dtype=torch.long))}, "the data is empty"),
        ({"data": (torch.zeros(3, 2, 4, 4), torch.tensor([0, 1, 4]))}, "label 4 is out of range"),
        ({"data": (torch.zeros(3, 2, 4, 4), torch.tensor([0, 1]))}, "3 samples but 2 labels"),
        ({"data": (torch.zeros(3, 2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2]))}, "samples are torch.uint8"),
        ({"data": "cifar10"}, "cannot read data of type str"),
        ({"method": "csadaa"}, "unknown method 'csadaa'; did you mean 'csada'"),
        ({"costs": None}, "method 'csada' needs costs="),
        ({"epsilom": 2}, "unknown option 'epsilom' for csada; did you mean 'epsilon'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'; known: constant"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
    ],
)
def test_bad_input_is_named(change, message):
    model, x, y = problem(16)
    arguments = {
        "model": model,
        "data": (x, y),
        "method": "csada",
        "costs": COSTS,
        "epochs": 1,
        "batch_size": 8,
    } | change
    with pytest.raises(csada.InputError, match=message):
        csada.fit(**arguments)


def test_a_model_on_a_device_without_double_precision_is_refused_in_one_line():
    """A GPU of Apple's (mps) is one; `meta` stands in for it, which every machine has."""
    with pytest.raises(
        csada.InputError, match=r"is on meta; fit trains on a CPU or a CUDA GPU: give model\.to\('cpu'\)"
    ):
        csada.fit(nn.Linear(4, 3, device="meta"), (torch.zeros(6, 4), torch.arange(6) % 3), "cross_entropy")


def test_precision_may_be_given_as_the_number_that_a_command_line_reads():
    assert split_options({"precision": 32}) == ({"precision": "32"}, {})
