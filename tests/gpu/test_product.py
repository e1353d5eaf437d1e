"""What a user does with a model on a GPU: train and fit by command line, save, export, other libraries' loops and metrics."""

import contextlib
import copy
import gc
import io
import json
import logging
import multiprocessing
import sys
import weakref

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import csada
from csada import metrics
from csada.cli import main
from csada.models import cnn, mlp, resnet
from csada.models.modes import best_device, best_precision
from csada.torchmetrics import MeanCost, PairwiseErrorRate, TotalCost
from csada.training import loop
from csada.workflow.fit import improve
from csada.workflow.train import train

COSTS = csada.CostMatrix.pareto(10, seed=0)


@pytest.fixture(scope="module")
def digits():
    return csada.data.load("digits", scale=0.3)


@pytest.fixture(scope="module")
def classifier(digits):
    return train(digits, "cnn", epochs=3)


def command(*words):
    """The program in this process; what it printed."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", ["csada", *map(str, words)])
        try:
            main()
        except SystemExit as end:
            assert not end.code, words
    return out.getvalue()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A baseline and what `fit` made of it, by command line."""
    folder = tmp_path_factory.mktemp("commands")
    command("train", "digits", "--scale", "0.3", "--model", "cnn", "--epochs", "3", "--out", folder / "base")
    words = ("--scale", "0.3", "--costs", "pareto:0", "--method", "csada", "--epochs", "2", "--json")
    told = json.loads(command("fit", folder / "base", "digits", *words, "--out", folder / "fitted"))
    return folder, told


def test_the_commands_use_the_gpu_in_half_precision(folders):
    folder, told = folders
    assert best_device().type == "cuda" and best_precision(best_device()) == "bf16"
    assert told["options"]["precision"] == "bf16" and set(told["rows"]) == {
        *("before", "before + rule", "after", "after + rule")
    }
    about = csada.Classifier.load(folder / "base").training.environment
    assert about.device == torch.cuda.get_device_name()


def test_a_page_is_written_of_what_was_fitted(folders):
    folder, _ = folders
    command("report", folder / "fitted", "--out", folder / "page.html")
    assert "digits" in (folder / "page.html").read_text()


def test_a_command_can_be_told_otherwise(folders, tmp_path):
    words = ("--scale", "0.3", "--costs", "pareto:0", "--method", "csada", "--set", "precision=32", "--epochs", "1")
    told = json.loads(command("fit", folders[0] / "base", "digits", *words, "--json", "--out", tmp_path / "a"))
    assert told["options"]["precision"] in (32, "32")
    command("evaluate", folders[0] / "fitted", "digits", "--scale", "0.3", "--device", "cpu")


@pytest.mark.parametrize("what", ["train", "fit"])
def test_the_commands_capture_their_step_and_keep_the_data_on_the_gpu(what, digits, classifier, monkeypatch):
    loops, sources = [], []

    class Seen(loop.Loop):
        def epoch(self, epoch, source, generator):
            loops.append(self)
            sources.append(source)
            return super().epoch(epoch, source, generator)

    monkeypatch.setattr(loop, "Loop", Seen)
    if what == "train":
        train(digits, "cnn", epochs=1)
    else:
        improve(classifier, digits, COSTS, options={"epochs": 1})
    assert loops[0].graphs.captured and loops[0].settings.precision == "bf16"
    assert sources[0].part.x.is_cuda and sources[0].part.y.is_cuda


def test_a_trained_model_is_kept_before_it_is_evaluated(digits, tmp_path, monkeypatch):
    """Scoring runs out of memory: the same call again evaluates and trains nothing."""

    def full(*_, **__):
        raise torch.OutOfMemoryError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr("csada.workflow.train.predict_logits", full)
        train(digits, "cnn", epochs=2, checkpoints=tmp_path)
    lines = []
    train(digits, "cnn", epochs=2, checkpoints=tmp_path, on_epoch=lambda line, _: lines.append(line))
    assert lines == []


def test_save_and_load_between_devices(classifier, digits, tmp_path):
    x = digits.test.x
    expected = classifier.logits(x)
    classifier.save(tmp_path / "model")
    for device in ("cuda", "cpu"):
        back = csada.Classifier.load(tmp_path / "model", device=device)
        assert next(back.network.parameters()).device.type == device
        torch.testing.assert_close(back.logits(x), expected, rtol=1e-3, atol=1e-3)
        assert (back.predict(x) == expected.argmax(1).numpy()).mean() > 0.99


def test_export_from_the_gpu(classifier, digits, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    assert classifier.export(tmp_path / "model.onnx").difference < 1e-3
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x = digits.test.x[:32].numpy()
    found = dict(
        zip((o.name for o in session.get_outputs()), session.run(None, {session.get_inputs()[0].name: x}), strict=True)
    )
    predicted = classifier.predict(digits.test.x[:32])
    assert any(v.shape == (32,) and (v == predicted).mean() > 0.95 for v in map(np.asarray, found.values())), (
        found.keys()
    )
    assert next(classifier.network.parameters()).is_cuda  # it went back to where it was


def test_scores_do_not_depend_on_the_batch(classifier, digits):
    one, many = (csada.predict_logits(classifier.network, digits, batch_size=n) for n in (7, 512))
    torch.testing.assert_close(one.logits, many.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [MeanCost, TotalCost, PairwiseErrorRate])
def test_metrics_of_tensors_on_the_gpu(kind):
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(200, 10, generator=generator), torch.randint(10, (200,), generator=generator)
    on_gpu, on_cpu = kind(COSTS).cuda(), kind(COSTS)
    for a in range(0, 200, 50):
        on_gpu.update(logits[a : a + 50].cuda(), labels[a : a + 50].cuda())
        on_cpu.update(logits[a : a + 50], labels[a : a + 50])
    value = on_gpu.compute()
    assert value.is_cuda
    torch.testing.assert_close(value.cpu(), on_cpu.compute(), equal_nan=True)
    if kind is MeanCost:
        counts = metrics.confusion_counts(labels, logits.argmax(1), 10)
        assert float(value) == pytest.approx(metrics.mean_cost(counts, COSTS), rel=1e-5)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_lightning_callback_trains_on_the_gpu(precision):
    pytest.importorskip("torchmetrics")
    from csada.lightning import CostSensitive

    lightning = sys.modules[CostSensitive.__base__.__module__.split(".callbacks")[0]]

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 10)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x, y = torch.randn(64, 8), torch.arange(64) % 10
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    module = Module()
    before = copy.deepcopy(module.net.state_dict())
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision=precision,
        max_epochs=2,
        callbacks=[CostSensitive(COSTS, "csada", step_size=0.1)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, loader)
    assert trainer.callback_metrics["csada_mean_cost"] >= 0 and trainer.strategy.root_device.type == "cuda"
    assert any(not torch.equal(value.cpu(), before[name]) for name, value in module.net.state_dict().items())


def divided(graph):
    torch.backends.cudnn.allow_tf32 = False  # as the fixture has it, which another process does not see
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(512, 3, 32, 32, generator=generator), torch.randint(10, (512,), generator=generator)
    model = resnet(9, 10).cuda()
    options = {"epochs": 1, "lr": 0.01, "batch_size": 512, "graph": graph, "tasks": 8, "steps": 2}
    csada.fit(model, (x, y), "csada", COSTS, **options)  # libraries take what they keep
    freed()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    whole = csada.fit(model, (x, y), "csada", COSTS, **options)
    needed = torch.cuda.max_memory_allocated() - before
    freed()
    total = torch.cuda.get_device_properties(0).total_memory
    for share in (0.6, 0.5, 0.4, 0.3):  # cuDNN takes less where there is less
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + share * needed) / total)
        try:
            csada.fit(model, (x, y), "csada", COSTS, **options)
        except torch.OutOfMemoryError:
            break
        freed()
    else:
        raise AssertionError(f"{needed} bytes were needed, and {share} of them are enough")
    freed()
    said = []
    logging.getLogger("csada").addFilter(lambda record: said.append(record.getMessage()) or True)
    parts = csada.fit(model, (x, y), "csada", COSTS, max_batch="auto", **options)
    assert any("out of memory: going on with at most" in line for line in said)
    for p, q in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def freed():
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("graph", [True, False])
def test_a_batch_that_does_not_fit_is_divided_for_the_same_update(graph):
    """In a part of the memory that the whole takes, captured or not; without max_batch the run ends.

    A process of its own: what earlier tests left reserved would be room beyond the limit.
    """
    process = multiprocessing.get_context("spawn").Process(target=divided, args=(graph,))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attack_on_the_gpu_is_the_attack_on_the_cpu(norm):
    model = cnn(3, 16, 10).eval()
    x = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    results = []
    for device in ("cpu", "cuda"):
        net, target = copy.deepcopy(model).to(device), ((y + 1) % 10).to(device)
        results.append(csada.attack(net, x.to(device), y.to(device), target, epsilon=0.5, step_size=0.05, norm=norm))
    cpu, gpu = results
    assert gpu.adversarial.is_cuda and (gpu.outcome.cpu() == cpu.outcome).float().mean() > 0.9
    same = gpu.outcome.cpu() == cpu.outcome
    torch.testing.assert_close(gpu.delta.cpu()[same], cpu.delta[same], rtol=1e-2, atol=1e-3)


def test_deterministic_algorithms_give_the_same_bits_twice(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    x, y = torch.randn(128, 3, 16, 16), torch.arange(128) % 10
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        fitted = [
            csada.fit(resnet(9, 10).cuda(), (x, y), "cross_entropy", epochs=2, lr=0.01, batch_size=32, precision="bf16")
            for _ in range(2)
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(p, q) for p, q in zip(*(f.model.parameters() for f in fitted), strict=True))


def test_after_a_run_its_graphs_are_gone_at_once(monkeypatch):
    """Their memory must not wait until Python looks for cycles."""
    graphs = []

    class Seen(loop.Loop):
        def epoch(self, *of):
            value = super().epoch(*of)
            graphs.extend(map(weakref.ref, self.graphs.captured.values()))
            return value

    monkeypatch.setattr(loop, "Loop", Seen)
    gc.disable()
    try:
        csada.fit(cnn(1, 8, 10).cuda(), (torch.randn(64, 1, 8, 8), torch.arange(64) % 10), "csada", COSTS, epochs=1)
    finally:
        gc.enable()
    assert graphs and all(graph() is None for graph in graphs)


def test_the_random_state_of_the_gpu_is_the_callers():
    torch.cuda.manual_seed(7)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(7)
    csada.fit(cnn(1, 8, 10).cuda(), (torch.randn(64, 1, 8, 8), torch.arange(64) % 10), "csada", COSTS, epochs=1)
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def test_a_run_begun_on_the_gpu_goes_on_on_the_cpu(tmp_path):
    x, y = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 10
    options = {"epochs": 3, "batch_size": 16, "lr": 0.05, "checkpoint": tmp_path / "checkpoint"}

    def stop(line, _):
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        csada.fit(cnn(1, 8, 10).cuda(), (x, y), "cross_entropy", on_epoch=stop, **options)
    resumed = csada.fit(cnn(1, 8, 10), (x, y), "cross_entropy", **options)
    assert [line["epoch"] for line in resumed.history] == [1, 2, 3]
    assert next(resumed.model.parameters()).device.type == "cpu"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_is_brought_to_the_model_wherever_it_lies(device):
    x, y = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 10
    here = csada.fit(cnn(1, 8, 10).cuda(), (x.to(device), y.to(device)), "csada", COSTS, epochs=1, batch_size=16)
    evaluated = csada.evaluate(here.model, (x.to(device), y.to(device)), COSTS)
    assert next(here.model.parameters()).is_cuda and evaluated.samples == 64


def test_a_loader_with_pinned_memory_trains_on_the_gpu():
    x, y = torch.randn(64, 1, 8, 8), torch.arange(64) % 10
    data = DataLoader(TensorDataset(x, y), batch_size=16, pin_memory=True)
    fitted = csada.fit(cnn(1, 8, 10).cuda(), data, "csada", COSTS, epochs=2)
    assert len(fitted.history) == 2 and np.isfinite(fitted.history[-1]["loss"])


def test_the_estimator_of_scikit_learn_trains_on_the_gpu():
    from csada.sklearn import CSADAClassifier

    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    x[np.arange(60), y] += 3
    model = CSADAClassifier(mlp(4, 3).cuda(), costs=csada.CostMatrix.pareto(3, seed=0)).fit(x, y)
    assert next(model.module_.parameters()).is_cuda and model.score(x, y) > 0.8
