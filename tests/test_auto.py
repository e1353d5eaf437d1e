"""`auto`: what is saved is what validation chose; members, views, a student and a time limit, and what it refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_cli import inside, refused
from torch import nn

import csada
from csada.classifier import Classifier
from csada.cli.fit import minutes_of
from csada.data.splits import Part, Splits
from csada.errors import InputError
from csada.paper import tabular
from csada.workflow.candidates import candidates
from csada.workflow.engine import Engine
from csada.workflow.folds import out_of_fold
from csada.workflow.train import train

COSTS = csada.CostMatrix.pareto(10, seed=1)


@pytest.fixture(scope="module")
def digits():
    return csada.data.load("digits")


@pytest.fixture(scope="module")
def given(digits):
    return train(digits, "mlp", epochs=20)


@pytest.fixture(scope="module")
def better(given, digits):
    return csada.auto(given, digits, COSTS)


def cheapest(evidence):
    needed = evidence.validation["before"].accuracy - evidence.budget / 100
    return min(e.mean_cost for e in evidence.validation.values() if e.accuracy >= needed - 1e-12)


def test_the_saved_model_is_the_cheapest_row_of_its_own_evidence(better, digits, tmp_path):
    evidence = better.evidence
    assert evidence.validation[evidence.chosen].mean_cost == cheapest(evidence)
    saved = better.evaluate(digits, part="validation").accuracy  # those above are of rules fitted on other folds
    assert saved >= evidence.validation["before"].accuracy - evidence.budget / 100
    assert evidence.admissions[0].name == "given" and evidence.method == "auto"
    kept = [each for each in evidence.admissions if each.kept]
    assert len(better.members) == len({each.name for each in kept}) > 1
    costs = [each.mean_cost for each in kept]
    assert costs[-1] < costs[0]  # the members bought something together; one of a plain average need not
    again = Classifier.load(better.save(tmp_path / "model"))
    assert (again.predict(digits.test.x) == evidence.decided(evidence.chosen)).all()
    text = (tmp_path / "model" / "README.md").read_text()
    assert "average of networks" in text and f"takes {len(better.members)} forward passes" in text


def test_the_same_run_is_the_same_model_and_another_seed_another(better, given, digits):
    same, other = csada.auto(given, digits, COSTS), csada.auto(given, digits, COSTS, seed=1)
    for classifier, equal in ((same, True), (other, False)):
        found = np.array_equal(classifier.logits(digits.test.x), better.logits(digits.test.x))
        assert found == equal


def test_more_members_than_candidates_is_told(given, digits, caplog):
    found = csada.auto(given, digits, COSTS, members=7, epochs=1)
    assert "members is 7, and there are 3 candidates: at most 4 are averaged" in caplog.text
    told = found.evidence.admissions  # what is left out, too
    assert {each.name for each in told} == {"given", "fresh", "fresh with mixup", "second fresh with mixup"}
    assert len({each.name for each in told if each.kept}) < 4 and [each.kept for each in told][-1] is False


def test_an_average_gets_its_rule_and_other_views_but_no_training(better, digits):
    """What `auto` made is given to it again: for other costs, say."""
    costs = csada.CostMatrix.pareto(10, seed=2)
    again = csada.auto(better, digits, costs, epochs=0)
    assert len(again.members) == len(better.members) and again.costs.values.tolist() == costs.values.tolist()
    assert list(again.evidence.rules) == ["before"] and not again.evidence.history
    same = csada.auto(better, digits, costs, members=1)
    assert same.decision == again.decision
    with pytest.raises(InputError, match="train them one by one"):
        csada.auto(better, digits, costs, on_epoch=pytest.fail)


def test_what_has_nothing_to_learn_from_is_told(given, digits, caplog):
    alone = csada.auto(given, digits, COSTS, members=1, single=True, on_epoch=pytest.fail)
    assert "no network is distilled" in caplog.text and list(alone.evidence.rules) == ["before"]


def test_one_member_at_most_trains_nothing(given, digits):
    lines = []
    alone = csada.auto(given, digits, COSTS, members=1, on_epoch=lambda *line: lines.append(line))
    assert len(alone.members) == 1 and not lines and list(alone.evidence.rules) == ["before"]


def test_a_student_is_one_network_and_is_saved_only_where_validation_prefers_it(given, digits):
    lines = []
    single = csada.auto(
        given, digits, COSTS, single=True, on_epoch=lambda line, total: lines.append((line["epoch"], total))
    )
    assert len(single.members) == 1 and single.views == ("identity",) and "after" in single.evidence.rules
    assert single.evidence.validation[single.evidence.chosen].mean_cost == cheapest(single.evidence)
    assert [epoch for epoch, _ in lines] == list(range(1, lines[0][1] + 1))  # counted over all trainings


class Stop(Exception):
    pass


def test_a_run_that_was_stopped_resumes_and_ends_the_same(better, given, digits, tmp_path):
    seen = []

    def stop(line, total):
        seen.append(line["epoch"])
        if len(seen) == 23:  # in the second candidate
            raise Stop

    with pytest.raises(Stop):
        csada.auto(given, digits, COSTS, checkpoints=tmp_path, on_epoch=stop)
    again = csada.auto(given, digits, COSTS, checkpoints=tmp_path, on_epoch=lambda line, _: seen.append(line["epoch"]))
    assert 21 < seen[23] < 24 and seen[-1] == 40  # from a checkpoint of the second candidate on
    assert np.array_equal(again.logits(digits.test.x), better.logits(digits.test.x))
    assert again.evidence.history[-1].epoch == 40


def test_a_time_limit_in_which_nothing_can_be_trained_leaves_the_rule(given, digits):
    slow = replace(given.training, history=tuple(replace(line, seconds=1e6) for line in given.training.history))
    found = csada.auto(replace(given, training=slow), digits, COSTS, minutes=1)
    assert list(found.evidence.rules) == ["before"] and found.evidence.chosen == "before + rule"


def test_no_network_is_trained_where_the_student_would_lack_the_time(given, digits):
    """20 epochs of a second each; the student takes twice as long."""
    slow = replace(given.training, history=tuple(replace(line, seconds=1.0) for line in given.training.history))
    slow = replace(slow, samples=slow.samples | {"train": len(digits.train)})
    single = {"minutes": 0.5, "single": True, "on_epoch": pytest.fail}
    found = csada.auto(replace(given, training=slow), digits, COSTS, **single)
    assert list(found.evidence.rules) == ["before"]


def images(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return Part(torch.randn(n, 3, 8, 8, generator=draw) + y[:, None, None, None] * 0.3, y)


def test_a_network_that_cannot_be_built_again_gets_members_and_views():
    splits = Splits(images(60, 0), images(90, 1), images(90, 2), ("a", "b", "c"))
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    net = csada.fit(net, splits, "cross_entropy", epochs=20, lr=0.01, batch_size=16).model
    own = replace(Classifier.of(net, splits), allowed_views=("identity", "mirror"))
    costs = csada.CostMatrix(csada.CostMatrix.pareto(3, seed=0).values, splits.classes)
    found = csada.auto(own, splits, costs, views=("identity", "mirror"))
    assert "after" in found.evidence.rules and len(found.evidence.history) == 3 * 15
    assert {each.name for each in found.evidence.admissions} > {"given", "restart with mixup", "restart"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"members": 0}, "members is 0; 1 or more are needed"),
        ({"views": ("mirror",)}, "digits were not mirrored in training"),
        ({"single": True, "epochs": 0}, "needs training"),
    ],
)
def test_what_cannot_be_is_refused_before_any_training(given, digits, words, message):
    with pytest.raises(InputError, match=message):
        csada.auto(given, digits, COSTS, on_epoch=pytest.fail, **words)


@pytest.fixture(scope="module")
def wine():
    """35 validation samples."""
    return tabular.load("wine", 0)


def test_few_validation_samples_are_helped_by_training_samples_that_the_network_did_not_see(wine, caplog, tmp_path):
    splits, costs = wine
    given, lines = train(splits, "mlp", epochs=10), []
    found = csada.auto(given, splits, costs, on_epoch=lambda line, total: lines.append((line["epoch"], total)))
    evidence = found.evidence
    assert "35 validation samples are too few" in caplog.text and "trained without it (5 folds)" in caplog.text
    assert len(evidence.labels("validation")) == len(splits.train) + len(splits.validation)
    assert evidence.validation[evidence.chosen].mean_cost == cheapest(evidence)
    assert [epoch for epoch, _ in lines] == list(range(1, lines[0][1] + 1))  # counted over all trainings
    again = Classifier.load(found.save(tmp_path / "model"))
    assert (again.predict(splits.test.x) == evidence.decided(evidence.chosen)).all()
    assert "here 142 training and validation samples" in (tmp_path / "model" / "README.md").read_text()


def test_folds_that_are_done_side_by_side_are_those_of_one_after_the_other(wine, tmp_path):
    splits, costs = wine
    given, seen = train(splits, "mlp", epochs=10), []
    more = {"checkpoints": tmp_path, "on_progress": lambda *now: seen.append(now)}
    apart = csada.auto(given, splits, costs, engine=Engine(workers=2), **more)
    here = csada.auto(given, splits, costs)
    assert all(np.array_equal(apart.evidence.arrays[name], each) for name, each in here.evidence.arrays.items())
    totals = list(dict.fromkeys(total for _, total, _ in seen))
    assert len(totals) == 2 and totals[1] == 5 * (10 + totals[0])  # the candidates; in each fold the given network, too
    assert not list(tmp_path.rglob("*.epoch"))


@pytest.mark.filterwarnings("ignore:the true class scores no higher")
def test_out_of_fold_scores_know_nothing_of_labels_that_mean_nothing(wine):
    splits, costs = wine
    draw = torch.Generator().manual_seed(0)
    mixed = {part: replace(own, y=torch.randint(3, (len(own),), generator=draw)) for part, own in splits.parts.items()}
    splits = replace(splits, **mixed)
    splits = replace(splits, validation=splits.train.take(np.arange(20)))  # copies of training samples, even
    given = train(splits, "mlp")
    scores, labels, _ = out_of_fold(given, splits, ("identity",), lambda *fold: candidates(*fold, costs, epochs=10)[:1])
    assert list(scores) == ["given", "fresh with mixup"] and given.training.accuracy["train"] > 0.7
    for seen in scores.values():
        assert (seen["identity"].argmax(1) == labels).float().mean() < 0.5


def test_few_validation_samples_keep_a_model_that_cannot_be_trained_again(wine, caplog):
    splits, costs = wine
    net = train(splits, "mlp", epochs=10).members[0]
    own = Classifier.of(net.model, splits, architecture="mlp", arguments=net.arguments)
    found = csada.auto(own, splits, costs, on_epoch=pytest.fail)
    assert list(found.evidence.rules) == ["before"]
    assert "cannot be trained again: the given model is kept, with its decision rule" in caplog.text


def test_by_command(given, tmp_path):
    given.save(tmp_path / "base")
    words = ("fit", tmp_path / "base", "digits", "--costs", "pareto:1", "--out", tmp_path / "out")
    run = inside(*words)
    assert run.returncode == 0, run.stderr
    assert "average of the networks down to each line" in run.stdout and "fresh with mixup" in run.stdout
    told = json.loads(inside(*words, "--epochs", "0", "--json").stdout)
    assert [each["name"] for each in told["members"]] == ["given"] and list(told["rows"]) == ["before", "before + rule"]
    again = ("fit", tmp_path / "out", "digits", "--costs", "pareto:0", "--epochs", "0", "--out", tmp_path / "again")
    assert list(json.loads(inside(*again, "--json").stdout)["rows"]) == ["before", "before + rule"]
    assert "--lr is for one method: add --method csada, say" in refused(*words, "--lr", "0.1")
    assert "--single is for auto" in refused(*words, "--method", "csada", "--single")
    assert "--time 'soon' is no time; write 10m, 90s or 1.5h" in refused(*words, "--time", "soon")


def test_times():
    assert [minutes_of(text) for text in ("10m", "90s", "1.5h", "3")] == [10, 1.5, 90, 3]
