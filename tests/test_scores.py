"""Scores of any model in a table: the same decisions as from the model itself, and one line for what cannot be used."""

import csv
import json

import numpy as np
import pytest
import torch
from test_cli import inside, refused

from csada import Classifier, CostMatrix, data
from csada.data.scores import read
from csada.metrics import REFER
from csada.workflow.scores import decided, fitted
from csada.workflow.train import train

COSTS = CostMatrix.pareto(10, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with calibration, rule and referrals; its scores; and what decide makes of these, all by command line."""
    place = tmp_path_factory.mktemp("scores")
    train(data.load("digits"), "cnn", epochs=3).save(place / "base")
    rule = ("--costs", "pareto:0", "--budget", "2", "--refer", "0.05")
    for words in (
        ("fit", place / "base", "digits", *rule, "--epochs", "0", "--out", place / "fitted"),
        ("evaluate", place / "fitted", "digits", "--scores", place / "scores.csv"),
        ("decide", place / "scores.csv", *rule, "--out", place / "decisions.csv", "--save", place / "kept"),
    ):
        run = inside(*words)
        assert run.returncode == 0, run.stderr
    return place


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_decisions_from_exported_scores_are_those_of_the_model_sample_by_sample(folder):
    model, splits = Classifier.load(folder / "fitted"), data.load("digits")
    rows = {row["id"]: row for row in table(folder / "decisions.csv")}
    assert len(rows) == sum(map(len, splits.parts.values()))
    assert Classifier.load(folder / "kept").decision == model.decision and model.decision.strength > 0
    referred = 0
    for name, part in splits.parts.items():
        chosen, _, cost, refer, *_ = model.decide(part.x)
        for i in range(len(part)):
            row = rows[f"{name}/{i}"]
            assert (row["predicted"], row["referred"]) == (model.classes[chosen[i]], str(bool(refer[i])).lower())
            assert float(row["expected_cost"]) == pytest.approx(cost[i], rel=1e-5)
        referred += int(refer.sum())
    assert referred > 10


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_probabilities_decide_as_logits_do_in_every_format(folder, tmp_path, form):
    model, splits = Classifier.load(folder / "base"), data.load("digits")
    logits = model.logits(splits.test.x).double()
    p = torch.softmax(logits, 1).numpy()
    labels = [model.classes[y] if i % 2 else "" for i, y in enumerate(splits.test.y.tolist())]
    columns = {"id": [f"s{i}" for i in range(len(p))], "label": labels}
    path = tmp_path / f"scores.{form}"
    if form == "npz":
        np.savez(path, classes=np.array(model.classes), p=p, **columns)
    elif form == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns | {f"p:{c}": p[:, k] for k, c in enumerate(model.classes)}), path)
    else:
        lines = [["id", "label", *(f"p:{c}" for c in model.classes)]]
        lines += [[i, y, *map(repr, row.tolist())] for i, y, row in zip(*columns.values(), p, strict=True)]
        path.write_text("\n".join(",".join(map(str, line)) for line in lines))
    found = read(path)
    assert found.logits(slice(None)) == pytest.approx(torch.log_softmax(logits, 1).numpy(), abs=1e-9)
    classifier = fitted(found, CostMatrix(COSTS.values, model.classes), budget=2)
    assert classifier.evidence.samples["validation"] + classifier.evidence.samples["test"] == len(p) // 2
    told = [row.predicted for row in decided(classifier, found)]
    assert told == [model.classes[k] for k in classifier.rule(logits).tolist()]


def test_a_saved_folder_serves_the_other_commands(folder, tmp_path):
    kept, scores = folder / "kept", folder / "scores.csv"
    judged = [
        json.loads(inside("evaluate", model, given, "--json").stdout)
        for model, given in ((kept, scores), (folder / "fitted", "digits"))
    ]
    assert [e["part"] for e in judged] == ["test", "test"] and judged[0]["confusion"] == judged[1]["confusion"]
    assert inside("report", kept, "--out", tmp_path / "report.html").returncode == 0
    again = inside("fit", kept, scores, "--costs", "pareto:1", "--out", tmp_path / "again")
    assert again.returncode == 0 and "no network to train" in again.stderr
    pytest.importorskip("onnxruntime")
    assert inside("export", kept, "--out", tmp_path / "m.onnx").returncode == 0
    for model, out in ((kept, "a.csv"), (tmp_path / "m.onnx", "b.csv")):
        assert inside("predict", model, scores, "--out", tmp_path / out).returncode == 0
    first, second = (table(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert [row["class"] for row in first] == [row["class"] for row in second]
    assert [row["class"] for row in first] == [row["predicted"] for row in table(folder / "decisions.csv")]


def test_without_labels_scores_are_taken_as_they_are_and_ties_stay_ties(tmp_path):
    (tmp_path / "costs.csv").write_text("truth,predicted,cost\na,b,4\nb,a,1\n")
    rows = [("x", 0.2, 0.8), ("y", 0.19, 0.81), ("z", 1, 0), ("w", 0.21, 0.79)]  # x: both answers cost 0.8
    path = tmp_path / "scores.csv"
    path.write_text("id,label,p:a,p:b\n" + "".join(f"{i},,{p},{q}\n" for i, p, q in rows))
    run = inside("decide", path, "--costs", tmp_path / "costs.csv", "--out", tmp_path / "d.csv", "--refer", "0.25")
    assert run.returncode == 0 and "no row is labelled, so the scores are taken as they are" in run.stderr
    found = table(tmp_path / "d.csv")
    assert [row["predicted"] for row in found] == ["b", "b", "a", "a"]  # of equals the likelier
    assert [float(row["expected_cost"]) for row in found[:2]] == pytest.approx([0.8, 0.76])
    assert [row["referred"] for row in found].count("true") <= 1
    assert refused("fit", tmp_path, path, "--costs", "uniform") and refused("train", path, "--out", tmp_path / "m")


def test_a_sample_stays_in_its_part_whatever_its_scores_are(tmp_path):
    draw, parts = np.random.default_rng(0), []
    for name in ("old", "new"):
        p = draw.dirichlet((1, 1, 1), 200)
        np.savez(tmp_path / name, id=np.arange(200), label=["abc"[i % 3] for i in range(200)], classes=[*"abc"], z=p)
        parts.append(data.load(tmp_path / f"{name}.npz"))
    assert parts[0].test.names == parts[1].test.names and 60 < len(parts[0].test) < 140
    assert len(parts[0].train) == 0


def test_limits_check_review_monitor_and_diff_work_on_scores_alone(folder, tmp_path):
    scores, kept, log = folder / "scores.csv", tmp_path / "kept", tmp_path / "log.jsonl"
    (tmp_path / "limits.toml").write_text(
        'confidence = 0.9\naccuracy_lost = { at_most = 0.05 }\n[[recall]]\nclass = "2"\nat_least = 0.5\n'
    )
    words = ("--limits", tmp_path / "limits.toml", "--out", tmp_path / "d.csv")
    run = inside("decide", scores, "--costs", "pareto:0", *words, "--save", kept, "--json")
    assert run.returncode == 0, run.stderr
    limited = json.loads(run.stdout)["limits"]
    assert all(each["kept"] for each in limited["validation"]) and len(limited["test"]) == 2
    words = ("--costs", "pareto:0", "--epochs", "0", "--method", "csada", "--limits", tmp_path / "limits.toml")
    assert inside("fit", folder / "base", "digits", *words, "--out", tmp_path / "fitted").returncode == 0
    assert Classifier.load(kept).decision == Classifier.load(tmp_path / "fitted").decision  # as fit does on the model
    again = tmp_path / "again.csv"
    assert inside("decide", scores, "--rule", kept, "--log", log, "--out", again).returncode == 0
    assert again.read_text() == (tmp_path / "d.csv").read_text()
    late = tmp_path / "late.csv"
    late.write_text("id,label\n" + "".join(f"{row['id']},{row['label']}\n" for row in table(scores)))
    run = inside("monitor", kept, log, "--every", "600", "--labels", late, "--out", tmp_path / "m.html", "--json")
    found = json.loads(run.stdout)["found"]
    assert run.returncode in (0, 1) and not found["skipped"] and (tmp_path / "m.html").exists()
    decisions = {row["id"]: row["predicted"] for row in table(again)}
    right = [decisions[row["id"]] == row["label"] for row in table(scores)[:600]]
    assert found["periods"][0]["truth"]["accuracy"] == pytest.approx(np.mean(right))
    run = inside("check", kept, scores, "--criteria", tmp_path / "limits.toml", "--json")
    assert run.returncode == 0 and json.loads(run.stdout)["verdict"] == "pass", run.stderr
    told = json.loads(inside("diff", folder / "kept", kept, scores, "--json").stdout)
    assert told["samples"] == len(data.load("digits").test)
    for words in (("review", kept, scores, "--out", tmp_path / "r.html"), ("report", kept)):
        assert inside(*words).returncode == 0
    few = tmp_path / "few.csv"
    few.write_text("id,label,p:a,p:b\n1,a,0.5,0.5\n")
    assert "limits need 20" in refused("decide", few, "--costs", "uniform", "--limits", tmp_path / "limits.toml")
    assert "the model takes z:0" in refused("decide", few, "--rule", kept, "--out", again)
    assert "--costs to make a rule" in refused("decide", few)
    for word, value in (
        ("costs", "uniform"),
        ("budget", "0.5"),
        ("limits", "limits.toml"),
        ("save", "x"),
        ("refer", "0"),
    ):
        told = refused("decide", scores, "--rule", kept, f"--{word}", value, "--out", again)
        assert f"--{word} is for a new rule" in told
    (tmp_path / "csada.toml").write_text('costs = "pareto:1"\nlimits = "limits.toml"\n')  # for all commands
    words = ("--project", tmp_path / "csada.toml", "decide", scores, "--rule", kept, "--out", again)
    assert inside(*words).returncode == 0 and again.read_text() == (tmp_path / "d.csv").read_text()


HEAD = "id,label,p:a,p:b"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([HEAD, "1,a,0.5,0.5", "2,b,0.6,0.6"], "line 3 (id '2'): the probabilities sum to 1.2"),
        ([HEAD, "1,a,0.5,0.5", "1,b,0.5,0.5"], "line 3 (id '1'): the id is there already"),
        ([HEAD, ",a,0.5,0.5"], "the id is empty"),
        ([HEAD, "1,c,0.5,0.5"], "line 2 (id '1'): label 'c' has no column"),
        ([HEAD, "1,a,nan,0.5"], "line 2 (id '1'): p:a is nan"),
        ([HEAD, "1,a,-0.5,1.5"], "p:a is -0.5; a probability"),
        ([HEAD, "1,a,x,0.5"], "line 2, column 'p:a': 'x' is not a finite number"),
        ([HEAD, "1,a,0.5"], "line 2 has 3 values; the header has 4"),
        (["id,p:a,p:b", "1,0.5,0.5"], "no column 'label'; leave its cells empty"),
        (["label,p:a,p:b", "a,0.5,0.5"], "no column 'id'"),
        (["id,label,p:a,z:b", "1,a,0.5,0.5"], "all p:CLASS or all z:CLASS"),
        (["id,label,p:a,p:a", "1,a,0.5,0.5"], "several columns for"),
        ([f"{HEAD},part", "1,a,0.5,0.5,exam"], "part is 'exam'; known: train"),
        ([HEAD], "has no rows"),
        ([HEAD.replace("p:b", "p:other"), "1,a,0.5,0.5"], "take out 'b'; add 'other'"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(tmp_path, lines, said):
    (tmp_path / "costs.csv").write_text("truth,predicted,cost\na,b,4\nb,a,1\n")
    (tmp_path / "scores.csv").write_text("\n".join(lines) + "\n")
    line = refused("decide", tmp_path / "scores.csv", "--costs", tmp_path / "costs.csv", "--out", tmp_path / "d.csv")
    assert said in line and not (tmp_path / "d.csv").exists()


def test_damaged_and_foreign_files_are_refused(tmp_path):
    for name in ("a.npz", "a.parquet"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
        assert "is no" in refused("decide", tmp_path / name, "--costs", "uniform")
    np.savez(tmp_path / "b.npz", id=np.array([{}], object), label=[""], classes=["a", "b"], p=[[0.5, 0.5]])
    assert "plain arrays" in refused("decide", tmp_path / "b.npz", "--costs", "uniform")  # nothing is unpickled
    np.savez(tmp_path / "c.npz", id=["1", "2"], label=[""], classes=["a", "b"], p=[[0.5, 0.5]])
    assert "do not fit together" in refused("decide", tmp_path / "c.npz", "--costs", "uniform")
    assert "cannot be read" in refused("decide", tmp_path / "none.csv", "--costs", "uniform")


def test_a_probability_of_zero_counts_as_half_of_the_least_that_is_shown(tmp_path):
    np.savez(tmp_path / "s.npz", id=["1", "2"], label=["", ""], classes=["a", "b"], p=[[1.0, 0.0], [0.01, 0.99]])
    found = read(tmp_path / "s.npz")
    assert np.exp(found.logits(slice(None)))[0] == pytest.approx([1.0, 0.005])
    network = fitted(found, CostMatrix([[0, 1], [1, 0]], "ab"))
    assert network.probabilities([[1.0, 0.0]])[0, 1] == pytest.approx(0.005 / 1.005)
    assert (network.predict([[1.0, 0.0]]) != REFER).all()
