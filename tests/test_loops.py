"""csada in loops that are not ours: a plain one, and Lightning's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_parallel import run_script
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import csada
from csada.errors import InputError

COSTS = csada.CostMatrix.pareto(3, seed=1)
NAMES = ("lightning", "pytorch_lightning")
INSTALLED = any(importlib.util.find_spec(name) for name in NAMES)
with_lightning = pytest.mark.skipif(not INSTALLED, reason="Lightning is not installed: pip install 'csada[lightning]'")


def data(n=48, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return F.one_hot(y, 4).float() + 0.4 * torch.randn(n, 4, generator=generator), y


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def loader(n=48, seed=0, **options):
    return DataLoader(TensorDataset(*data(n, seed)), batch_size=16, **options)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_in_a_plain_loop_the_attack_leaves_no_trace_but_its_loss():
    model, (x, y) = network().train(), data()
    model[1].eval()  # a batch norm that its owner froze
    statistics, flags = model[1].running_mean.clone(), [m.training for m in model.modules()]
    method = csada.METHODS["csada"](COSTS, step_size=0.1)
    plain = F.cross_entropy(model(x), y)
    loss = method(model, x, y)
    assert all(p.grad is None for p in model.parameters())
    assert [m.training for m in model.modules()] == flags and torch.equal(model[1].running_mean, statistics)
    loss.backward()
    assert loss > plain and all(p.grad.abs().sum() > 0 for p in model.parameters())


def lightning():
    """The package of the two that the callback goes with."""
    from csada.lightning import CostSensitive

    return importlib.import_module(CostSensitive.__base__.__module__.split(".callbacks")[0])


def make(**different):
    """A module as its user would write it, but for what a test wants different."""

    class Module(lightning().LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return type("Different", (Module,), different)()


def trainer(*callbacks, epochs=1, checkpoints=None, **options):
    return lightning().Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        enable_checkpointing=checkpoints is not None,
        default_root_dir=checkpoints,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def callback(*arguments, **options):
    from csada.lightning import CostSensitive

    return CostSensitive(COSTS, *arguments, **options)


@with_lightning
@pytest.mark.filterwarnings(
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:`training_step` returned `None`",
    "ignore:.*LeafSpec",  # Lightning is behind torch
)
class TestLightning:
    def test_the_module_is_trained_as_by_the_method_in_a_plain_loop(self):
        options = {"estimator": "full", "step_size": 0.1}  # full: nothing is drawn
        module, twin = make(), network().train()
        trainer(callback(freeze_norm=True, **options), epochs=2).fit(module, loader())
        twin[1].eval()
        method, optimizer = csada.METHODS["csada"](COSTS, **options), torch.optim.SGD(twin.parameters(), lr=0.1)
        for _ in range(2):
            for x, y in loader():
                optimizer.zero_grad()
                method(twin, x, y).backward()
                optimizer.step()
        torch.testing.assert_close(weights(module), weights(twin))
        assert torch.equal(module.net[1].running_mean, torch.zeros(8)) and module.net[1].training

    def test_batch_norm_learns_unless_it_is_frozen(self):
        module = make()
        trainer(callback()).fit(module, loader())
        assert module.net[1].running_mean.abs().sum() > 0

    def test_what_the_module_logs_and_returns_is_kept_and_a_skipped_batch_stays_skipped(self):
        seen = []

        def step(self, batch, batch_idx):
            self.log("mine", 7.0)
            return None if batch_idx == 1 else {"loss": F.cross_entropy(self(batch[0]), batch[1]), "extra": batch_idx}

        def ended(self, outputs, batch, batch_idx):
            seen.append(({k: v for k, v in (outputs or {}).items() if k != "loss"}, weights(self)))

        t = trainer(callback("expected_cost"))
        t.fit(make(training_step=step, on_train_batch_end=ended), loader())
        assert t.callback_metrics["mine"] == 7 and "csada_loss" in t.callback_metrics
        assert seen[0][0] == {"extra": 0} and not seen[1][0] and seen[2][0] == {"extra": 2}
        assert torch.equal(seen[0][1], seen[1][1]) and not torch.equal(seen[1][1], seen[2][1])

    def test_validation_logs_the_cost_and_a_checkpoint_keeps_the_cheapest(self, tmp_path):
        validation, costs = loader(60, seed=1), []
        kept = lightning().callbacks.ModelCheckpoint(monitor="csada_mean_cost", save_weights_only=True)

        def note(self):
            costs.append(float(self.trainer.callback_metrics["csada_mean_cost"]))

        module = make(on_validation_end=note)
        t = trainer(callback("expected_cost"), kept, epochs=4, checkpoints=tmp_path)
        t.fit(module, loader(), validation)
        e = csada.evaluate(module, validation, COSTS)
        assert t.callback_metrics["csada_mean_cost"] == pytest.approx(e.mean_cost, rel=1e-6)
        assert t.callback_metrics["csada_accuracy"] == pytest.approx(e.accuracy)
        assert len(set(costs)) > 1 and float(kept.best_model_score) == min(costs)

    def test_another_model_and_another_kind_of_batch(self):
        def step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch["image"]), batch["label"])

        module = make(training_step=step, forward=lambda self, x: {"logits": self.net(x)})
        x, y = data()
        batches = DataLoader([{"image": a, "label": b} for a, b in zip(x, y, strict=True)], batch_size=16)
        t = trainer(callback(model="net", unpack=lambda batch: (batch["image"], batch["label"])))
        t.fit(module, batches, batches)
        assert t.callback_metrics["csada_accuracy"] > 0.3
        with pytest.raises(InputError, match=r"a batch is a dict, not \(x, y\); give unpack="):
            trainer(callback(model="net")).fit(module, batches)

    def test_mixed_precision_trains_every_weight(self):
        module, before = make(), weights(network())
        t = trainer(callback(step_size=0.1), precision="bf16-mixed")
        t.fit(module, loader(), loader())
        assert (weights(module) != before).float().mean() > 0.9
        assert np.isfinite(float(t.callback_metrics["csada_loss"]))

    @pytest.mark.parametrize("where", ["training_step", "on_train_epoch_end"])
    def test_after_an_error_the_module_is_its_own_again(self, where):
        def fail(self, *_):
            raise RuntimeError("out of luck")

        module = make(**{where: fail})
        with pytest.raises(RuntimeError, match="out of luck"):
            trainer(callback(freeze_norm=True)).fit(module, loader())
        assert "training_step" not in vars(module) and module.net[1].training

    def test_after_the_callback_the_module_trains_on_its_own_loss_again(self):
        module, used = make(), callback("expected_cost")
        trainer(used).fit(module, loader())
        t = trainer()
        t.fit(module, loader())
        assert "csada_loss" not in t.callback_metrics and "train_loss" in t.callback_metrics
        trainer(used).fit(module, loader())  # and the callback can be used again

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"method": "cada"}, "unknown method 'cada'; did you mean 'csada'"),
            ({"lr": 0.1}, "unknown option 'lr' for csada; known: estimator, weight"),
            ({"step_sise": 0.1}, "unknown option 'step_sise' for csada; did you mean 'step_size'"),
            ({"model": "nett"}, "model='nett': .*no attribute `nett`"),
            ({"precision": "bf16-true"}, "x is torch.bfloat16; an attack takes small steps in float32"),
            ({"automatic_optimization": False}, "Different optimises by hand"),
            ({"classes": 4}, "scores 3 classes but the costs name 4"),
            ({"twice": True}, "training_step of this Different is replaced already"),
            *(
                ({"method": name}, "changes the model or the data before training; use csada.fit")
                for name in ("sosr", "csdnn", "auxcst", "oversampling", "undersampling", "costing", "metacost")
            ),
        ],
    )
    def test_what_cannot_work_is_refused_before_any_step(self, arguments, message):
        from csada.lightning import CostSensitive

        arguments = dict(arguments)
        module = make(automatic_optimization=arguments.pop("automatic_optimization", True))
        costs = csada.CostMatrix.pareto(arguments.pop("classes", 3), seed=1)
        precision, twice = arguments.pop("precision", None), arguments.pop("twice", False)
        before = weights(module)
        with pytest.raises(InputError, match=message):
            used = [CostSensitive(costs, **arguments) for _ in range(1 + twice)]
            trainer(*used, precision=precision).fit(module, loader())
        assert torch.equal(weights(module).float(), before) or precision
        assert "training_step" not in vars(module)


SCRIPT = """
import gc, os, sys, warnings, torch
sys.path.insert(0, sys.argv[1])
import test_loops as t
module = t.make()
trainer = t.trainer(t.callback("expected_cost", freeze_norm=True), devices=2, strategy="ddp")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    trainer.fit(module, t.loader(), t.loader(60, seed=1))
seen = {name: float(value) for name, value in trainer.callback_metrics.items()}
told = [str(w.message) for w in caught if "csada_" in str(w.message)]
assert not told, told
torch.save((seen, module.net.state_dict()), sys.argv[2] + os.environ["RANK"])
del trainer, module
gc.collect()  # what still refers to the group may abort the process at its exit
torch.distributed.destroy_process_group()
"""


@with_lightning
def test_two_processes_log_the_cost_and_the_accuracy_of_all_samples(tmp_path):
    done = run_script(tmp_path / "run.py", SCRIPT, Path(__file__).parent, tmp_path / "out", processes=2)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        seen, state = torch.load(f"{tmp_path / 'out'}{rank}")
        model = network()
        model.load_state_dict(state)
        e = csada.evaluate(model, data(60, seed=1), COSTS)
        assert seen["csada_accuracy"] == pytest.approx(e.accuracy)
        assert seen["csada_mean_cost"] == pytest.approx(e.mean_cost, rel=1e-6)


def test_without_lightning_the_import_names_the_way_out(monkeypatch):
    monkeypatch.delitem(sys.modules, "csada.lightning", raising=False)
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"^csada.lightning needs Lightning: pip install 'csada\[lightning\]'$"):
        importlib.import_module("csada.lightning")
