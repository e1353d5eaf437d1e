"""Leaving cases to a person has a price, or is told apart. Nothing looks cheaper because cases were referred for free."""

import copy
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from made import RULE, made_evidence
from test_classifier import edit, rearrange
from test_cli import inside, refused

import csada
from csada.decisions import Decision
from csada.metrics import REFER
from csada.report.card import card, verdict
from csada.report.page import page, tiles
from csada.report.sections import coverage
from csada.workflow.fit import improve
from csada.workflow.train import train

LIST = "truth,predicted,cost,why\n*,*,1\na,a,0\nb,b,0\nc,c,0\na,b,10\n"
TABLE = ",a,b,c\na,0,10,1\nb,1,0,1\nc,1,1,0\n"
PRICE = 0.4


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A weak model: many of its decisions are doubtful."""
    folder = tmp_path_factory.mktemp("referral") / "base"
    train(csada.data.load("digits", scale=0.3), "mlp", epochs=3).save(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(base):
    """By what was asked for: what the program says, and the saved classifier. Nothing is trained."""
    asked = {
        "nothing": (),
        "a share": ("--refer", "0.1"),
        "a price": ("--referral-cost", PRICE),
        "both": ("--referral-cost", PRICE, "--refer", "0.05"),
        "a price and no share": ("--referral-cost", PRICE, "--refer", "0"),
    }
    found = {}
    for name, words in asked.items():
        out = base.parent / name.replace(" ", "-")
        common = ("--costs", "pareto:1", "--epochs", "0", "--scale", "0.3", "--out", out, "--json")
        run = inside("fit", base, "digits", *common, *words)
        assert run.returncode == 0, run.stderr
        found[name] = json.loads(run.stdout), csada.Classifier.load(out)
    return found


# -- the price -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [f"{LIST}*,(refer),0.5,a pharmacist looks\n", f"{TABLE}(refer),0.5\n"])
def test_the_price_is_a_line_of_the_file_and_goes_where_the_costs_go(tmp_path, text):
    file = tmp_path / "costs.csv"
    for written in (text, text.replace(",", ";").replace("0.5", "0,5")):
        file.write_text(written)
        costs = csada.CostMatrix.from_csv(file, ["c", "a", "b"])
        assert costs.referral_cost == 0.5 and costs["a", "b"] == 10 and costs.classes == ("c", "a", "b")
    bare = csada.CostMatrix(costs.values, costs.classes)
    assert costs == csada.CostMatrix(costs.values, costs.classes, 0.5) != bare and len({costs, bare}) == 2
    assert copy.deepcopy(costs) == costs == costs.ordered("abc").ordered("cab")  # as pickle makes it
    assert "referral costs 0.5" in repr(costs) and "referral" not in repr(bare)
    for as_list in (False, True):
        costs.to_csv(file, as_list=as_list)
        assert csada.CostMatrix.from_csv(file).ordered(costs.classes) == costs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIST + "*,(refer),-1\n", "referral_cost is -1; .* zero or more"),
        (LIST + "*,(refer),inf\n", "referral_cost is inf"),
        (LIST + "*,(refer),much\n", "line 7: cost of a referral is 'much', no number"),
        (LIST + "*,(refer),1\n*,(refer),2\n", "line 8: .* stands above already; keep one"),
        (LIST + "a,(refer),1\n", r"line 7: a referral costs the same whatever the truth; write \*,\(refer\),0.5"),
        (LIST + "(refer),(refer),0\n", "a referral costs the same whatever the truth"),
        (TABLE + "(refer),1\n(refer),2\n", r"line 6: write what a referral costs once, as \(refer\),0.5"),
        (TABLE + "(refer),1,1,1\n", r"write what a referral costs once"),
        (TABLE + "(refer),x\n", "cost of a referral is 'x', no number"),
    ],
)
def test_a_bad_price_is_named_with_its_line(tmp_path, text, message):
    (tmp_path / "costs.csv").write_text(text)
    with pytest.raises(csada.InputError, match=message):
        csada.CostMatrix.from_csv(tmp_path / "costs.csv")


def test_a_class_of_that_name_stays_a_class(tmp_path):
    costs = csada.CostMatrix([[0, 2], [1, 0]], ["a", "(refer)"])
    costs.to_csv(tmp_path / "costs.csv")
    assert csada.CostMatrix.from_csv(tmp_path / "costs.csv") == costs
    with pytest.raises(csada.InputError, match=r"a class named '\(refer\)', which means leaving a case to a person"):
        costs.to_csv(tmp_path / "costs.csv", as_list=True)
    with pytest.raises(csada.InputError, match="rename it"):
        csada.CostMatrix(costs.values, costs.classes, referral_cost=1)


def test_check_repeats_the_price_and_templates_mention_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for price, warning in ((0.5, None), (0, "is free: every case"), (10, "no less than any mistake: no case")):
        (tmp_path / "costs.csv").write_text(f"{LIST}*,(refer),{price}\n")
        shown = inside("costs", "check", "costs.csv").stdout
        assert f"Leaving a case to a person costs {price}." in shown and (warning is None or warning in shown)
        assert json.loads(inside("costs", "check", "costs.csv", "--json").stdout)["referral_cost"] == price
    for form, line in ((), "*,(refer),"), (("--matrix",), "(refer),"):
        inside("costs", "new", "digits", "--force", *form)
        assert re.search(rf"^# .*{re.escape(line)}0\.5", (tmp_path / "costs.csv").read_text(), re.MULTILINE)
        assert csada.CostMatrix.from_csv("costs.csv").referral_cost is None
    inside("init", "digits")
    assert "# refer = 0.05" in (tmp_path / "csada.toml").read_text()


# -- what is reported ------------------------------------------------------------------------------


def test_without_a_price_every_number_is_that_of_deciding_every_case(fitted):
    (plain, _), (told, saved) = fitted["nothing"], fitted["a share"]
    for row, parts in told["rows"].items():
        for part, numbers in parts.items():
            own = {key: value for key, value in numbers.items() if key not in ("coverage", "referred", "decided")}
            assert own == {key: plain["rows"][row][part][key] for key in own}
            assert (numbers["decided"] is not None) == ("rule" in row) == (numbers["referred"] > 0)
    evidence, splits = saved.evidence, csada.data.load("digits", scale=0.3)
    assert evidence.must_refer and "rule" in evidence.chosen
    assert evidence.validation[evidence.chosen].referred == int(0.1 * evidence.samples["validation"])
    predicted, labels = saved.predict(splits.test.x), splits.test.y.numpy()
    e, kept = evidence.test[evidence.chosen], predicted != REFER
    assert e.referred == (~kept).sum() > 0 and e.decided.accuracy == (predicted == labels)[kept].mean()
    assert e.decided.mean_cost == pytest.approx(saved.costs.values[labels, predicted][kept].mean())
    assert e.decided.mean_cost < e.mean_cost == saved.evaluate(splits).mean_cost
    assert evidence.paid(evidence.chosen).mean() == pytest.approx(e.mean_cost)


def test_with_a_price_a_referred_case_is_charged_just_that(fitted):
    splits = csada.data.load("digits", scale=0.3)
    for asked in ("a price", "both"):
        told, saved = fitted[asked]
        predicted, labels = saved.predict(splits.test.x), splits.test.y.numpy()
        paid = np.where(predicted == REFER, PRICE, saved.costs.values[labels, predicted])
        numbers = told["rows"][told["chosen"]]["test"]
        assert numbers["mean_cost"] == pytest.approx(paid.mean()) == saved.evaluate(splits).mean_cost
        assert numbers["referred"] == (predicted == REFER).sum() > 0 and numbers["referral_cost"] == PRICE
        assert saved.evidence.paid(told["chosen"]).tolist() == paid.tolist() and numbers["decided"] is None
    above = {name: saved.decision.refer_above for name, (_, saved) in fitted.items()}
    assert above["nothing"] is None is above["a price and no share"]
    assert above["a price"] == PRICE < above["both"]  # the share is a limit: only the costliest are referred
    most = fitted["both"][1].evidence
    assert (most.rule(most.chosen)(most.logits("before", "validation")) == REFER).mean() <= 0.05
    for part in ("validation", "test"):  # a price that nothing uses changes no number
        free = {row: parts[part]["mean_cost"] for row, parts in fitted["nothing"][0]["rows"].items()}
        rows = fitted["a price and no share"][0]["rows"]
        assert {row: parts[part]["mean_cost"] for row, parts in rows.items()} == free


@pytest.mark.parametrize("asked", ["a share", "a price"])
def test_python_program_card_and_page_show_the_same_numbers(fitted, asked):
    told, saved = fitted[asked]
    evidence = saved.evidence
    e, text, shown = evidence.test[evidence.chosen], card(evidence, "8 x 8 pixels"), page(evidence)
    cost = f"{100 * e.mean_cost:.2f}"
    assert e.mean_cost == told["rows"][evidence.chosen]["test"]["mean_cost"] and told["verdict"] == verdict(evidence)
    assert f"costs {cost} per 100 predictions" in told["verdict"] and e.referral in told["verdict"]
    assert text.count(e.referral) == 2 and f"| {cost} |" in text and e.referral in shown
    found = {name: (now, note) for name, _, now, note in tiles(evidence)}
    assert found["Cost per 100 predictions"][0] == cost
    note = f"of {e.samples}, " + ("price not given" if asked == "a share" else f"at {PRICE} each")
    assert found["Left to a person"] == (str(e.referred), note)
    judged = inside("evaluate", told["folder"], "digits", "--scale", "0.3").stdout
    assert f"cost per 100 predictions {cost}" in judged and e.referral in judged


def test_the_curve_says_what_all_cases_cost_or_which_price_breaks_even():
    rules = {"before": RULE}
    for fee in (None, 0.5):
        evidence = made_evidence("before + rule", rules=rules, sure=(1.0,), referral_cost=fee)
        e, shown = evidence.test["before + rule"], str(coverage(evidence)["chart"])
        per_case = [float(x) for x in re.findall(r"less than ([\d.]+)</title>", shown)]
        whole = [float(x) for x in re.findall(r"all cost ([\d.]+) per 100", shown)]
        if fee is None:  # the doubtful cases are worth most
            assert not whole and per_case[-1] > e.mean_cost and per_case[0] == pytest.approx(e.mean_cost, rel=0.02)
            assert all(cost < per_case[-1] for cost in per_case[:50])
        else:
            assert not per_case and whole[-1] == pytest.approx(100 * e.mean_cost, abs=0.1)
            assert whole[0] == pytest.approx(100 * fee, rel=0.02)  # nearly all cases go to the person


def test_an_exported_model_refers_alike(fitted, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    _, saved = fitted["both"]
    about = saved.export(tmp_path / "model.onnx").about
    assert about.referral_cost == PRICE and about.decision["refer_above"] == saved.decision.refer_above
    x = csada.data.load("digits", scale=0.3).test.x
    outputs = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(["class", "refer"], {"input": x.numpy()})
    assert np.array_equal(np.where(outputs[1], REFER, outputs[0]), saved.predict(x))


def test_a_folder_from_when_threshold_and_price_were_one_is_shown_without_a_price(fitted, base, tmp_path):
    _, saved = fitted["both"]
    folder = saved.save(tmp_path / "old")
    above = saved.decision.refer_above
    for path in (("decision",), ("evidence", "rules", "before")):
        edit(folder, *path, "refer_above", remove=True)
        edit(folder, *path, "referral_cost", value=above)
    held_out = saved.evidence.arrays["before_held_out"]
    assert (held_out == REFER).any()
    rearrange(folder, referral_cost=None)
    old = csada.Classifier.load(folder)
    assert old.decision == saved.decision and old.costs.referral_cost is None
    plain = fitted["nothing"][1].evidence.test["before + rule"]
    assert old.evidence.test["before + rule"].mean_cost == plain.mean_cost
    assert (old.evidence.decided("before + rule", "validation") != REFER).all()
    assert "What that costs is not given" in verdict(replace(old.evidence, chosen="before + rule"))
    assert inside("report", folder).returncode == 0


def test_a_share_at_no_price_is_referred_even_where_a_rule_gains_nothing():
    """With equal costs the most probable class would be chosen, and that row refers nothing."""
    rules = {"before": Decision(0.35, strength=0.5, refer_above=0.2)}
    equal = {"costs": 1 - np.eye(3), "classes": tuple("abc"), "sure": (2.0,), "pictures": False}
    assert made_evidence("before", rules=rules, **equal).cheapest() == "before"
    evidence = made_evidence("before", rules=rules, refer=0.1, **equal)
    assert evidence.cheapest() == "before + rule"
    assert "costs least of the rows that can refer cases" in card(evidence, "8 numbers")
    assert "No test case is left to a person." in verdict(evidence)


@pytest.mark.parametrize(("price", "message"), [("-1", "referral_cost is -1"), ("nan", "referral_cost is nan")])
def test_a_bad_price_is_refused_by_the_program(base, price, message, tmp_path):
    words = ("--costs", "uniform", "--scale", "0.3", "--out", tmp_path / "out", "--referral-cost", price)
    assert message in refused("fit", base, "digits", *words)


def test_a_project_gives_the_price_and_notices_when_it_changes(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = (
        f'data = "digits"\ncosts = "pareto:1"\nscale = 0.3\n[fit]\nmodel = {json.dumps(str(base))}\nout = "model"\n'
        'epochs = 0\nreferral_cost = 0.4\n[evaluate]\nmodel = "model"\n'
    )
    (tmp_path / "csada.toml").write_text(project)
    assert inside("fit").returncode == 0
    assert csada.Classifier.load("model").costs.referral_cost == 0.4
    assert "changed since" not in inside("evaluate").stderr
    (tmp_path / "csada.toml").write_text(project.replace("referral_cost = 0.4", "referral_cost = 0.5"))
    assert "what a referral costs (0.4, now 0.5); run csada fit" in inside("evaluate").stderr.replace("\n", " ")


def test_training_and_comparing_decide_every_case_whatever_a_referral_costs(base):
    """A method's confusion has no place for referred cases: they would be free."""
    from csada.evaluation import evaluate_scores, predict_logits
    from csada.workflow.fit import decision_for

    splits, start = csada.data.load("digits", scale=0.3), csada.Classifier.load(base)
    costs = csada.CostMatrix(csada.CostMatrix.pareto(10, seed=1).values, splits.classes, 0.1)
    scores = predict_logits(start.network, splits, part="validation")
    decision = decision_for(scores, scores, costs, 0.5)
    e = evaluate_scores(scores, costs, decision.rule(costs))
    assert decision.refer_above is None and e.referred == 0 and e.confusion.sum() == len(splits.validation)
    better = improve(start, splits, costs, options={"epochs": 0})
    assert better.decision.refer_above == 0.1
