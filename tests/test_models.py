"""Models: torchvision's names, seeds that touch nothing global, files that either load whole or say why not."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from csada import models
from csada.errors import InputError
from csada.models.factories import sketch
from csada.models.folded import foldable, folded_forward
from csada.models.weights import as_bytes


def small_cnn(seed: int = 5) -> nn.Module:
    return models.create("cnn", 3, channels=1, size=8, width=4, seed=seed)


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def torchvision_shapes(blocks: tuple[int, ...], classes: int) -> dict[str, tuple[int, ...]]:
    """The state dict of torchvision's resnet with basic blocks, written out from its naming scheme."""
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (width,)
        shapes[f"{name}.num_batches_tracked"] = ()

    shapes["conv1.weight"] = (64, 3, 7, 7)
    norm("bn1", 64)
    before = 64
    for layer, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=1):
        for block in range(count):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = (width, before, 3, 3)
            norm(f"{name}.bn1", width)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if block == 0 and layer > 1:
                shapes[f"{name}.downsample.0.weight"] = (width, before, 1, 1)
                norm(f"{name}.downsample.1", width)
            before = width
    shapes["fc.weight"], shapes["fc.bias"] = (classes, 512), (classes,)
    return shapes


@pytest.mark.parametrize(("depth", "blocks"), [(34, (3, 4, 6, 3)), (9, (1, 1, 1, 1))])
def test_resnet_has_torchvisions_parameters_in_its_order(depth: int, blocks: tuple[int, ...]) -> None:
    model = models.resnet(depth, 1000, stem="imagenet")
    ours = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert list(ours.items()) == list(torchvision_shapes(blocks, 1000).items())


def test_resnet34_parameter_counts() -> None:
    assert parameters(models.resnet(34, 1000, stem="imagenet")) == 21_797_672  # the published number
    assert parameters(models.resnet(34, 10)) == 21_282_122


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet9", (3, 32, 32)),
        ("resnet9", (1, 28, 28)),
        ("resnet9", (3, 96, 96)),
        ("resnet34", (1, 28, 28)),
        ("cnn", (1, 8, 8)),
        ("cnn", (3, 32, 32)),
        ("mlp", (1, 8, 8)),
        ("mlp", (2,)),
    ],
)
def test_every_model_takes_samples_of_the_shape_it_was_fitted_to(name: str, shape: tuple[int, ...]) -> None:
    model = models.create(name, 7, **models.arguments_for(name, shape)).eval()
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_imagenet_stem_divides_the_image_by_four_before_the_first_block_and_the_small_one_does_not() -> None:
    for stem, side in (("small", 64), ("imagenet", 16)):
        model = models.resnet(9, 2, channels=1, stem=stem)
        seen = []
        model.layer1.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(inputs[0].shape[-1]))
        model(torch.zeros(2, 1, 64, 64))
        assert seen == [side]


def test_a_cnn_for_digits_is_small_enough_for_a_cpu_and_mixes_no_samples() -> None:
    model = models.create("cnn", 10, channels=1, size=8)
    assert 20_000 <= parameters(model) <= 60_000
    assert not any(isinstance(m, nn.BatchNorm2d | nn.Dropout) for m in model.modules())
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x)[:2], model(x[:2]))


def test_cnn_options_are_built_in() -> None:
    model = models.cnn(1, 8, 3, width=4, dropout=0.5, batch_norm=True)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 3
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.5]


def test_the_toy_mlp_is_one_hidden_layer_of_50_nodes() -> None:
    assert parameters(models.mlp(2, 3)) == 2 * 50 + 50 + 50 * 3 + 3
    assert parameters(models.mlp(2, 3, hidden=())) == 2 * 3 + 3


def test_convolutions_start_at_hes_scale() -> None:
    model = models.resnet(9, 10)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        first = model.conv1(x)
    # He, fan out: variance 2 / (64 * 9) of a weight times 27 inputs of variance one
    assert first.var().item() == pytest.approx(2 / (64 * 9) * 27, rel=0.3)


@pytest.mark.parametrize("name", ["resnet9", "cnn", "mlp"])
def test_the_seed_alone_decides_the_weights_and_global_random_state_stays(name: str) -> None:
    arguments = models.arguments_for(name, (1, 8, 8))
    state = torch.get_rng_state()
    first = models.create(name, 3, seed=1, **arguments)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert same_weights(first, models.create(name, 3, seed=1, **arguments))
    assert not same_weights(first, models.create(name, 3, seed=2, **arguments))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.create("resnet43", 10), "did you mean 'resnet34'"),
        (lambda: models.create("cnn", 10, channels=1), "missing a required argument: 'size'"),
        (lambda: models.create("mlp", 3, features=2, hiden=(5,)), "'hiden'; it takes features, classes, hidden"),
        (lambda: models.resnet(50, 10), "known depths: 9, 34"),
        (lambda: models.resnet(9, 10, stem="large"), "known stems: small, imagenet"),
        (lambda: models.resnet(9, 0), "got 0"),
        (lambda: models.mlp(2, 3, hidden=(0,)), "positive widths"),
        (lambda: models.mlp(2, 3, activation="tanh"), "unknown activation 'tanh'; known: relu, sigmoid"),
        (lambda: models.cnn(1, 3, 10), "at least 4 pixels"),
        (lambda: models.cnn(1, 8, 10, dropout=1.0), "below 1"),
        (lambda: models.arguments_for("cnn", (1, 8, 9)), "square"),
    ],
)
def test_what_cannot_be_built_says_why(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# --- the last layer, and which layers learn


def test_the_head_is_the_last_linear_and_can_be_replaced() -> None:
    model = small_cnn().double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert models.head(model) == "fc"
    state = torch.get_rng_state()
    assert models.replace_head(model, 6, seed=3) is model
    assert torch.equal(torch.get_rng_state(), state)
    assert model(torch.zeros(1, 1, 8, 8, dtype=torch.float64)).shape == (1, 6)  # keeps its precision
    after = model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before if not k.startswith("fc"))
    assert torch.equal(after["fc.weight"], models.replace_head(small_cnn(1).double(), 6, seed=3).fc.weight)


def test_a_nested_head_and_a_model_that_is_nothing_but_a_head() -> None:
    nested = nn.ModuleDict({"body": nn.Linear(4, 4), "top": nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))})
    assert models.head(nested) == "top.1"
    models.replace_head(nested, 9)
    assert nested["top"][1].out_features == 9
    assert nested["top"][1].bias is None
    assert models.replace_head(nn.Linear(4, 2), 5).out_features == 5
    with pytest.raises(InputError, match="no Linear"):
        models.head(nn.Sequential(nn.Flatten()))


def test_freezing_all_but_the_head_lets_only_the_head_learn() -> None:
    model = small_cnn()
    models.freeze(model, except_=models.head(model))
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]
    models.freeze(model, except_=("conv3", "fc"))
    assert {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad} == {"conv3", "fc"}
    models.freeze(model)
    assert not any(p.requires_grad for p in model.parameters())
    models.unfreeze(model)
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(InputError, match="no layer 'fcc'; did you mean 'fc'"):
        models.freeze(model, except_="fcc")
    assert all(p.requires_grad for p in model.parameters())


def test_load_takes_names_and_refuses_what_it_does_not_know() -> None:
    assert same_weights(models.load("cnn", 3, channels=1, size=8, width=4, seed=5), small_cnn(5))
    for call, message in (
        (lambda: models.load("cnn", channels=1, size=8), "how many classes"),
        (lambda: models.load("runs/nowhere"), "neither a model nor package.module:factory"),
        (lambda: models.load("resnet"), "did you mean"),
    ):
        with pytest.raises(InputError, match=message):
            call()


# --- the user's own models

OWN = """
from torch import nn
class Net(nn.Module):
    def __init__(self, classes=4, width=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, classes))
    def forward(self, x):
        return self.layers(x)
def fixed():
    return nn.Linear(64, 5)
def text(classes):
    return "no model"
number = 3
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_models_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_models_of_a_user"
    sys.modules.pop("own_models_of_a_user", None)


def test_an_import_path_gives_the_users_own_model(own_models: str) -> None:
    state = torch.get_rng_state()
    model = models.load(f"{own_models}:Net", classes=6, width=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 6)
    assert same_weights(model, models.load(f"{own_models}:Net", classes=6, width=2))
    assert models.load(f"{own_models}:fixed").out_features == 5  # takes no classes, so it gets none


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fixed", "gave 5 classes, not 6"),
        ("text", "gave a str, not an nn.Module"),
        ("number", "package.module:factory"),
        ("nothing", "has no attribute 'nothing'"),
        ("", "package.module:factory"),
    ],
)
def test_an_import_path_that_gives_no_such_model_says_so(own_models: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.load(f"{own_models}:{name}", classes=6)
    with pytest.raises(InputError, match="No module named"):
        models.load(f"no_such_package:{name}", classes=6)
    with pytest.raises(InputError, match="'depth'; it takes classes, width"):
        models.load(f"{own_models}:Net", classes=6, depth=3)


# --- weights made elsewhere


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    model = models.resnet(9, 100, stem="imagenet", seed=7).eval()
    path = tmp_path_factory.mktemp("weights") / "resnet9.safetensors"
    save_file(model.state_dict(), path)
    return model, path


def test_weights_of_another_task_load_with_a_new_seeded_head(imagenet: tuple[nn.Module, Path]) -> None:
    source, path = imagenet
    model = models.load_weights(models.resnet(9, 5, stem="imagenet"), path, seed=3)
    theirs, ours = source.state_dict(), model.state_dict()
    assert all(torch.equal(theirs[k], ours[k]) for k in theirs if not k.startswith("fc"))
    again = models.load_weights(models.resnet(9, 5, stem="imagenet", seed=9), path, seed=3)
    assert same_weights(model, again)  # the new head comes from the seed, not from what was there before
    with pytest.raises(InputError, match=r"fc.weight is \(100, 512\) and should be \(5, 512\)"):
        models.load_weights(model, path, head="keep")
    assert same_weights(model, again)  # and a refused file changes nothing
    with pytest.raises(InputError, match="'replace' or 'keep'"):
        models.load_weights(model, path, head="drop")


def test_weights_of_the_same_task_load_whole(imagenet: tuple[nn.Module, Path]) -> None:
    source, path = imagenet
    for head in ("replace", "keep"):
        assert same_weights(source, models.load_weights(models.resnet(9, 100, stem="imagenet"), path, head=head))


def test_a_grey_model_sees_what_the_colour_model_sees_in_a_grey_picture(imagenet: tuple[nn.Module, Path]) -> None:
    source, path = imagenet
    model = models.load_weights(models.resnet(9, 100, channels=1, stem="imagenet"), path).eval()
    grey = torch.randn(2, 1, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(grey), source(grey.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)


def strange(state: dict[str, Tensor]) -> dict[str, object]:
    """Files of tensors that cannot be copied as they are."""
    weight = state["fc.weight"]
    with warnings.catch_warnings(action="ignore"):
        kinds: dict[str, object] = {
            "sparse": weight.to_sparse(),
            "meta": weight.to("meta"),
            "quantized": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
            "nested": torch.nested.nested_tensor([weight, weight]),
            "complex": weight.to(torch.complex64),
            "number": 3,
        }
    files: dict[str, object] = {name: state | {"fc.weight": value} for name, value in kinds.items()}
    return files | {"int key": state | {3: weight}, "tuple key": state | {("fc", "x"): weight}}


def test_tensors_of_other_kinds_are_refused_and_change_nothing(tmp_path: Path) -> None:
    model = models.resnet(9, 3, channels=1)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for name, state in strange(dict(model.state_dict())).items():
        with warnings.catch_warnings(action="ignore"):
            torch.save(state, tmp_path / f"{name}.pt")
        with pytest.raises(InputError, match="holds no table of tensors"):
            models.load_weights(model, tmp_path / f"{name}.pt")
    torch.save(before | {"conv1.weight": torch.ones(1).expand(2**20, 3, 2**10, 2**10)}, tmp_path / "endless.pt")
    with pytest.raises(InputError, match=r"conv1.weight is \(1048576, 3, 1024, 1024\) and should be"):
        models.load_weights(model, tmp_path / "endless.pt")
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_weights_take_no_more_memory_than_their_file(tmp_path: Path) -> None:
    model = models.resnet(9, 3, channels=1)
    torch.save(model.state_dict(), tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            bomb.writestr(name, bytes(2**26) if name.endswith("data/0") else plain.read(name))
    with pytest.raises(InputError, match=r"it is compressed, and torch.save compresses nothing"):
        models.load_weights(model, tmp_path / "bomb.pt")


def test_lists_of_a_stranger_make_no_network_of_a_hundred_thousand_layers() -> None:
    with pytest.raises(InputError, match="make no mlp: hidden has more than 1000 values"):
        sketch("mlp", 3, {"features": 4, "hidden": [1] * 100_000}, "model.json", trust=False)


def test_a_librarys_network_takes_no_memory_before_its_shapes_are_compared(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("from torchvision import models\n")
    (tmp_path / "torchvision" / "models.py").write_text(
        "import torch\n"
        "def list_models(module): return ['wide', 'looks']\n"
        "def get_model(name, weights, num_classes):\n"
        "    model = torch.nn.Linear(2**40 if name == 'wide' else 2, num_classes)\n"
        "    if name == 'looks': model.weight.sum().item()\n"
        "    return model\n"
    )
    code = """if True:
        import torch
        from csada.errors import InputError
        from csada.models.factories import rebuild
        state = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}
        assert torch.equal(rebuild("torchvision:looks", 3, {}, state, "m", False).weight, state["weight"])
        try:
            rebuild("torchvision:wide", 3, {}, state, "m", False)
        except InputError as error:
            print(error)
    """
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    env = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "weight is (3, 2) and should be (3, 1099511627776)" in done.stdout, done.stdout + done.stderr


def test_a_torch_file_loads_even_an_old_one_without_counters_or_a_head(tmp_path: Path) -> None:
    source = models.resnet(9, 3, channels=1)
    source.bn1.running_mean += 1
    state = {k: v for k, v in source.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pth")
    assert same_weights(source, models.load_weights(models.resnet(9, 3, channels=1, seed=1), tmp_path / "old.pth"))
    body = {k: v for k, v in state.items() if not k.startswith("fc")}
    torch.save({"state_dict": body, "epoch": 3}, tmp_path / "body.pth")
    model = models.load_weights(models.resnet(9, 3, channels=1, seed=1), tmp_path / "body.pth")
    assert torch.equal(model.bn1.running_mean, source.bn1.running_mean)
    with pytest.raises(InputError, match=r"missing: fc.weight, fc.bias$"):
        models.load_weights(model, tmp_path / "body.pth", head="keep")


class Dangerous:
    def __reduce__(self):
        return print, ("code in a weights file was run",)


def test_weights_that_do_not_fit_say_why_and_never_run_code(
    tmp_path: Path, imagenet: tuple[nn.Module, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"fc.weight": Dangerous()}, tmp_path / "dangerous.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "garbage.pth").write_bytes(b"garbage" * 50)
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "garbage.safetensors").write_bytes(b"garbage" * 50)
    save_file({**load_file(imagenet[1]), "extra": torch.zeros(1)}, tmp_path / "extra.safetensors")
    for name, message in {
        "dangerous.pth": "cannot read the weights",
        "list.pth": "no table of tensors",
        "garbage.pth": "cannot read the weights",
        "empty.pth": "cannot read the weights",
        "garbage.safetensors": "cannot read the weights",
        "nothing.pth": "no weights at",
        "extra.safetensors": "does not fit this ResNet: unexpected: extra$",
    }.items():
        with pytest.raises(InputError, match=message):
            models.load_weights(models.resnet(9, 100, stem="imagenet"), tmp_path / name)
    with pytest.raises(InputError, match=r"conv1.weight is \(64, 3, 7, 7\) and should be \(64, 3, 3, 3\)"):
        models.load_weights(models.resnet(9, 10), imagenet[1])
    assert capsys.readouterr().out == ""


def test_the_hub_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"pip install 'csada\[hub\]'"):
        models.load_weights(small_cnn(), "hub:timm/resnet34.a1_in1k")


class Hub(BaseHTTPRequestHandler):
    """One repository of the Hugging Face hub, owner/name, whose only file is `content`."""

    content = b""

    def do_GET(self) -> None:
        there = self.path == "/owner/name/resolve/main/model.safetensors"
        self.send_response(200 if there else 404)
        self.send_header("Content-Length", str(len(self.content) if there else 0))
        self.send_header("X-Error-Code", "" if there else "RepoNotFound")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{"1" * 40}"')
        self.end_headers()
        if there and self.command == "GET":
            self.wfile.write(self.content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


def test_weights_come_from_the_hub_and_then_from_its_cache(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    given = small_cnn()
    with torch.no_grad():
        next(given.parameters()).fill_(7)
    Hub.content = as_bytes(given)
    said = (
        "import sys; from csada import models; m = models.create('cnn', 3, channels=1, size=8, width=4); "
        "print(next(models.load_weights(m, sys.argv[1]).parameters()).mean().item())"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        local = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_DISABLE_XET": "1",
        }

        def load(name: str) -> subprocess.CompletedProcess[str]:
            how = {"capture_output": True, "text": True, "env": os.environ | local}
            return subprocess.run([sys.executable, "-c", said, f"hub:{name}"], **how)

        assert load("owner/name").stdout == "7.0\n"
        wrong = load("owner/other").stderr.splitlines()[-1]
        assert "InputError: cannot fetch hub:owner/other" in wrong
        server.shutdown()
    assert load("owner/name").stdout == "7.0\n"  # nobody answers


# --- batch norm folded into the convolutions


@pytest.mark.parametrize(("depth", "stem"), [(9, "small"), (9, "imagenet"), (34, "small")])
def test_folded_batch_norms_give_the_same_logits_and_gradients(depth: int, stem: str) -> None:
    model = models.resnet(depth, 4, channels=1, stem=stem).double()
    generator = torch.Generator().manual_seed(0)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        for values, low, high in ((norm.weight, 0.5, 1.5), (norm.bias, -1, 1), (norm.running_mean, -1, 1)):
            values.data.uniform_(low, high, generator=generator)
        norm.running_var.uniform_(0.5, 2, generator=generator)
    x = torch.randn(2, 1, 20, 20, dtype=torch.float64, generator=generator)
    model.eval()
    folded = folded_forward(model, torch.float64)
    with torch.no_grad():
        expected, got = model(x), folded(x)
    assert ((expected - got).abs().max() / expected.abs().max()).item() < 1e-10
    x.requires_grad_()  # an attack needs the gradient of the input through it, the descent those of the weights
    wanted = [x, model.conv1.weight, model.bn1.weight, model.layer4[0].bn2.bias, model.layer2[0].downsample[0].weight]
    for theirs, ours in zip(*(torch.autograd.grad(f(x)[:, 0].sum(), wanted) for f in (model, folded)), strict=True):
        assert ((theirs - ours).abs().max() / theirs.abs().max()).item() < 1e-10


def test_a_changed_resnet_is_folded_as_it_is_or_not_at_all() -> None:
    """A stem with a bias and another last layer are seen; a layer of another kind or with a hook cannot be folded."""
    x = torch.randn(3, 1, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.resnet(9, 4, channels=1)
        model.conv1 = nn.Conv2d(1, 64, 3, padding=1)
        model.fc = nn.Sequential(nn.Linear(512, 8), nn.Tanh(), nn.Linear(8, 4))
        model = model.double().eval()
    assert foldable(model)
    with torch.no_grad():
        assert torch.allclose(folded_forward(model, torch.float64)(x), model(x), rtol=1e-9)
    hook = model.layer2[0].conv1.register_forward_hook(lambda *_: None)
    assert not foldable(model)
    hook.remove()
    grouped = nn.Conv2d(64, 64, 3, padding=1, groups=2)
    for name, layer in (("bn1", nn.GroupNorm(4, 64)), ("conv2", grouped)):
        changed = models.resnet(9, 4, channels=1)
        setattr(changed.layer1[0], name, layer)
        assert not foldable(changed)


# --- learning


def test_each_model_learns_a_few_samples_by_heart() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 1, 8, 8, generator=generator), torch.arange(12) % 3
    for name in ("cnn", "mlp", "resnet9"):
        model = models.create(name, 3, **models.arguments_for(name, (1, 8, 8)))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(40):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.2, name


def test_neither_torchvision_nor_timm_is_imported() -> None:
    code = (
        "import sys, csada.models; sys.exit(any(m in sys.modules for m in ('torchvision', 'timm', 'huggingface_hub')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
