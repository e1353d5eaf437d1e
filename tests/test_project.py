"""The project file and `csada init`, through the program and its parts."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from test_cli import csada, inside, refused
from typer.main import get_command

from csada import Classifier, CostMatrix, InputError
from csada.classifier import deployed
from csada.cli import app
from csada.cli.project import known_settings
from csada.data.splits import Part, Splits
from csada.workflow.project import Start, choose, read, suited

COMMANDS = known_settings(get_command(app))


def given(tmp_path, text, command="train"):
    (tmp_path / "csada.toml").write_text(text)
    return {s.parameter: value for s, value in read(tmp_path / "csada.toml", COMMANDS)[command].items()}


def test_top_keys_go_to_all_that_have_them_and_a_table_comes_first(tmp_path):
    text = 'data = "digits"\ncosts = "uniform"\n[train]\nepochs = 3\n[fit]\ndata = "mnist"\n'
    assert given(tmp_path, text) == {"data": "digits", "epochs": 3}
    assert given(tmp_path, text, "fit") == {"data": "mnist", "costs": "uniform"}


@pytest.mark.parametrize(
    "model, side, gpu, expected",
    [
        ("resnet9", 224, True, Start("resnet9", 60, "pmi-fast")),  # as photographs need it, not as small images do
        ("resnet34", 72, False, Start("resnet34", 150, "pmi-fast")),
        ("resnet9", 32, True, Start("resnet9", 60, "fast")),
        ("cnn", 72, True, Start("cnn", None)),
        (None, 32, False, Start("cnn", 60)),
    ],
)
def test_a_resnet_of_another_size_is_trained_as_the_one_that_suits(model, side, gpu, expected):
    part = Part(torch.zeros(8, 3, side, side, dtype=torch.uint8), torch.arange(8) % 2)
    splits = Splits(part, part, part, ("a", "b"))
    assert suited(splits, model, None, None, gpu=gpu) == expected
    assert suited(splits, model, "small", 3, gpu=gpu) == Start(expected.model, 3, "small")


def test_paths_are_relative_to_the_file_and_names_stay_names(tmp_path, monkeypatch):
    (tmp_path / "project" / "photos").mkdir(parents=True)
    (tmp_path / "scans").mkdir()
    monkeypatch.chdir(tmp_path)
    text = 'data = "{}"\ncosts = "{}"\n[train]\nout = "model"\n'
    for data, costs, data_seen, costs_seen in [
        ("photos", "costs.csv", "project/photos", "project/costs.csv"),
        ("digits", "pareto:0", "digits", "pareto:0"),
        ("../scans", "/costs.csv", "project/../scans", "/costs.csv"),
        ("scans", "pmi", "project/scans", "pmi"),  # never those that happen to lie where csada was started
    ]:
        train = given(Path("project"), text.format(data, costs))
        assert train == {"data": data_seen, "out": "project/model"}
        assert given(Path("project"), text.format(data, costs), "fit")["costs"] == costs_seen


def test_a_backbone_is_a_folder_relative_to_the_file_or_a_name(tmp_path, monkeypatch):
    (tmp_path / "project" / "backbone").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for features, seen in (("backbone", "project/backbone"), ("timm:resnet18", "timm:resnet18")):
        assert given(Path("project"), f'[train]\nfeatures = "{features}"\n') == {"features": seen}


def test_a_folder_with_the_name_of_a_data_set_stays_a_folder(tmp_path, monkeypatch):
    (tmp_path / "pills").mkdir()
    monkeypatch.chdir(tmp_path)
    assert given(Path(), 'data = "./pills"\n')["data"] == "./pills"
    assert given(Path(), 'data = "builtin:pills"\n')["data"] == "builtin:pills"


def test_options_of_a_method_are_a_table_or_a_list(tmp_path):
    for text in ('set = { weight = 2.5, estimator = "full", fixed = true }', 'set = ["weight=2.5", "estimator=full"]'):
        assert given(tmp_path, f"[fit]\n{text}", "fit")["options"][:2] == ["weight=2.5", "estimator=full"]
    assert given(tmp_path, '[fit]\nset = "weight=2"', "fit")["options"] == ["weight=2"]
    assert given(tmp_path, "scale = 1\n[fit]\nbudget = 2", "fit") == {"scale": 1.0, "budget": 2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dta = 1", "unknown key 'dta' at the top; known: data, "),
        ('model = "resnet9"', r"unknown key 'model' at the top; .* its table, such as \[train\]"),
        ("[trian]\nepochs = 1", r"unknown table \[trian\]; did you mean 'train'"),
        ("[train]\nepocs = 1", r"unknown key 'epocs' in \[train\]; known: data, out, model"),
        ("[train]\nepochs = 2024-01-01", r"\[train\] epochs is .*; a whole number is needed"),
        ("[train", "is no TOML file"),
        ('seed = "x"', ": seed is 'x'; a whole number is needed"),
        ("seed = 1.5", ": seed is 1.5; a whole number is needed"),
        ("[seed]\nx = 1", ": seed is {'x': 1}; a whole number is needed"),
        ("size = [1]", r": size is \[1\]; a whole number is needed"),
        ("flip = 1", ": flip is 1; true or false is needed"),
        ("data = 3", ": data is 3; text is needed"),
        ("[train]\nepochs = 1.5", r": \[train\] epochs is 1.5; a whole number is needed"),
        ("[train.out]\nx = 1", r": \[train\] out is {'x': 1}; text is needed"),
        ("[fit]\nbudget = true", r": \[fit\] budget is True; a number is needed"),
        ("[fit]\nset = [1]", r": \[fit\] set\[0\] is 1; text is needed"),
    ],
)
def test_what_no_command_knows_or_takes_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=r"csada\.toml.*" + message):
        given(tmp_path, text)


def test_a_quick_start_passes_by_as_many_images_whatever_their_number():
    few, many, most = (choose(n, 480, True, gpu=False).train for n in (300, 3_000, 300_000))
    assert (few.epochs, many.epochs, most.epochs) == (100, 10, 5) and (few.model, few.size) == ("resnet9", 72)
    assert choose(300, 480, True, gpu=True).train.size == 224
    assert choose(300, None, False, gpu=False).train.size is None


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Digits as PNG files: three classes of 40."""
    root = tmp_path_factory.mktemp("somewhere") / "photos"
    digits = load_digits()
    for name, k in (("one", 1), ("seven", 7), ("zero", 0)):
        (root / name).mkdir(parents=True)
        for i, image in enumerate(digits.images[digits.target == k][:40]):
            Image.fromarray((15 * image).astype("uint8")).save(root / name / f"{i}.png")
    return root


def test_from_init_to_a_decision_without_a_flag(photos, tmp_path):
    made = csada("init", photos, "--out", tmp_path)
    assert made.returncode == 0 and made.stderr == ""
    assert f"cd {tmp_path}" in made.stdout and "csada predict INPUTS" in made.stdout
    project = tomllib.loads((tmp_path / "csada.toml").read_text())
    assert project["train"]["model"] == "cnn" and project["train"]["size"] == 8
    with (tmp_path / "costs.csv").open("a") as file:
        file.write("seven,one,10,looks alike\n")

    def done(*words, program=inside):
        run = program(*words, cwd=tmp_path)
        assert run.returncode == 0, (words, run.stderr)
        return run

    checked = done("costs", "check")
    assert "seven labelled as one costs 10" in checked.stdout and "settings from csada.toml" in checked.stderr
    done("train", "--epochs", "3")
    training = Classifier.load(tmp_path / "baseline").training
    assert len(training.history) == 3 and training.model == "cnn"  # what was given, and what was not
    done("fit", "--epochs", "1")
    assert CostMatrix.from_csv(tmp_path / "model" / "costs.csv")["seven", "one"] == 10
    done("report")
    assert (tmp_path / "report.html").stat().st_size > 1000
    images = sorted((photos / "seven").iterdir())[:3]
    rows = done("predict", *images, program=csada).stdout.splitlines()
    assert len(rows) == 4 and rows[0].startswith("file,class,probability")


TOML = """\
data = "digits"
scale = 0.3
costs = "costs.csv"
[train]
model = "cnn"
epochs = 1
out = "baseline"
[fit]
model = "baseline"
out = "model"
epochs = 0
[tune]
model = "baseline"
out = "tuned"
epochs = 6
trials = 1
budget = 5
[compare]
methods = "penalty"
[evaluate]
model = "model"
[report]
folder = "model"
[review]
model = "model"
[export]
model = "model"
[predict]
model = "model"
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A project in which fit and tune have each saved a model; the tuned one, which was trained, is cheaper."""
    root = tmp_path_factory.mktemp("project")
    (root / "csada.toml").write_text(TOML)
    CostMatrix.pareto(10, seed=0).to_csv(root / "costs.csv")
    for word in ("train", "fit", "tune"):
        run = inside(word, cwd=root)
        assert run.returncode == 0, run.stderr
    return root


def told(root, *words):
    """What a command says on stderr, but for the line that names the project file."""
    run = inside(*words, cwd=root)
    assert run.returncode == 0, run.stderr
    return [line for line in run.stderr.splitlines() if not line.startswith("settings from")]


@pytest.mark.parametrize("command", ["evaluate", "report", "review", "export", "predict"])
def test_of_two_models_the_cheaper_on_validation_is_taken_and_named(both, command):
    words = [command, *(["zero.png", "--out", "rows.csv"] if command == "predict" else [])]
    Image.new("L", (8, 8)).save(both / "zero.png")
    costs = [deployed(both / name).evidence for name in ("tuned/model", "model")]
    was = [100 * e.validation[e.chosen].mean_cost for e in costs]
    assert was[0] < was[1]
    assert told(both, *words) == [
        f"takes tuned/model: it costs less on validation, {was[0]:.2f} against {was[1]:.2f} per 100 predictions; "
        "to take the other, name model"
    ]
    named = [command, "model", *(["digits"] if command in ("evaluate", "review") else words[1:])]
    assert told(both, *named) == []  # what is named is taken, without a word


def test_what_changed_since_the_model_was_made_is_said_and_dates_do_not_count(both, tmp_path):
    root = shutil.copytree(both, tmp_path / "copy")
    costs, table = root / "costs.csv", CostMatrix.from_csv(root / "costs.csv")
    costs.touch()
    assert told(root, "report", "model") == []
    values = table.values.copy()
    values[0, 1], values[2, 3] = 99, 98
    CostMatrix(values, table.classes).to_csv(costs)
    for words, folder, command in (
        (["report", "model"], "model", "csada fit"),
        (["report", "tuned/model"], "tuned/model", "csada tune"),
    ):
        (line,) = told(root, *words)
        assert line.startswith(f"changed since {folder} was made: costs.csv (0 labelled as 1: ")
        assert line.endswith(f", now 99 and 1 more); run {command}")
    table.to_csv(costs)
    told(root, "train", "--seed", "1")
    for words in (["report", "model"], ["compare", "--seeds", "1", "--epochs", "1", "--baseline-epochs", "1"]):
        assert told(root, *words)[0] == "changed since model was made: the model baseline; run csada fit"
    shutil.rmtree(root / "tuned")
    costs.unlink()
    assert told(root, "report") == ["changed since model was made: the model baseline; run csada fit"]


@pytest.mark.filterwarnings("ignore:the true class scores")  # one epoch on few samples
def test_a_project_is_used_from_elsewhere_and_flags_add_to_its_options(tmp_path):
    project = tmp_path / "there" / "csada.toml"
    project.parent.mkdir()
    project.write_text(
        'data = "digits"\ncosts = "pareto:0"\nscale = 0.1\n[train]\nmodel = "mlp"\nepochs = 1\nout = "baseline"\n'
        '[fit]\nmodel = "baseline"\nout = "fitted"\nepochs = 1\nset = { weight = 3, tasks = 4 }\n'
    )
    for words in (["train"], ["fit", "--method", "csada", "--set", "tasks=5"]):
        run = inside("--project", project, *words, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    options = Classifier.load(project.parent / "fitted").evidence.options
    assert options["weight"] == 3 and options["tasks"] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_projects_model_is_not_taken_for_an_image_nor_the_other_way_round(tmp_path):
    (tmp_path / "csada.toml").write_text('[predict]\nmodel = "mine"\n')
    assert "mine does not exist" in inside("predict", "a.png", "b.png", cwd=tmp_path).stderr
    assert "other.onnx" in inside("predict", "other.onnx", "b.png", cwd=tmp_path).stderr


def test_a_broken_project_is_one_line_and_helps_stay_readable(tmp_path):
    (tmp_path / "csada.toml").write_text("[train]\nepochs = 1.5\n")
    run = inside("train", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (2, "csada: csada.toml: [train] epochs is 1.5; a whole number is needed\n")
    assert inside("train", "--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("train", "DATA"),
        ("evaluate", "MODEL and DATA"),
        ("fit m", "MODEL, DATA and --costs"),
        ("report", "FOLDER"),
        ("costs check", "COSTS"),
    ],
)
def test_without_a_project_a_command_says_what_it_needs_and_how_to_start_one(tmp_path, monkeypatch, words, needed):
    monkeypatch.chdir(tmp_path)
    assert refused(*words.split()) == f"csada: no csada.toml here; give {needed}, or run csada init DATA\n"
    (tmp_path / "csada.toml").write_text("")
    assert "Missing" in inside(*words.split()).stderr


def test_the_papers_experiments_take_nothing_from_a_project():
    assert "reproduce" not in COMMANDS and "init" not in COMMANDS
    assert COMMANDS["fit"]["set"].flag == "--set" and COMMANDS["train"]["out"].is_path


def test_init_never_overwrites_what_was_filled_in(photos, tmp_path):
    filled = "truth,predicted,cost\n*,*,1\nseven,one,10\nzero,one,2\n"
    (tmp_path / "costs.csv").write_text(filled)
    assert inside("init", photos, "--out", tmp_path).returncode == 0
    again = inside("init", photos, "--out", tmp_path)
    assert again.returncode == 2 and "--force overwrites it" in again.stderr
    assert (tmp_path / "costs.csv").read_text() == filled
    (tmp_path / "costs.csv").write_text(filled.replace("seven", "sewen"))
    wrong = inside("init", photos, "--out", tmp_path, "--force")
    assert wrong.returncode == 2 and "rename 'sewen' to 'seven'" in wrong.stderr


def test_baselines_of_a_comparison_start_from_the_weights_of_train(tmp_path, monkeypatch):
    """They started from nothing, without a word."""
    monkeypatch.chdir(tmp_path)
    assert inside("train", "digits", "--model", "mlp", "--epochs", "15", "--out", "base").returncode == 0
    words = ("digits", "--costs", "uniform", "--methods", "oversampling", "--epochs", "1", "--seeds", "1", "--json")
    own = ("--model", "mlp", "--baseline-epochs", "1")
    found = [
        inside("compare", *words, *own, *more)
        for more in ((), ("--pretrained", "base/model.safetensors", "--out", "b"))
    ]
    (tmp_path / "csada.toml").write_text(
        '[train]\nmodel = "mlp"\nepochs = 1\npretrained = "base/model.safetensors"\n[compare]\nout = "c"\n'
    )
    nothing, given_, of_train = (json.loads(run.stdout) for run in [*found, inside("compare", *words)])
    assert (
        of_train["plan"]["pretrained"] == given_["plan"]["pretrained"] == str(tmp_path / "base" / "model.safetensors")
    )
    assert nothing["plan"]["pretrained"] is None
    cost = [each["summary"][0]["cost"][0] for each in (nothing, given_, of_train)]
    assert cost[1] == cost[2] < cost[0] / 2
    missing = inside("compare", *words, *own, "--pretrained", "no.safetensors", "--out", "d")
    assert missing.returncode == 2 and "no weights at" in missing.stderr
