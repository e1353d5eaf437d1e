"""A log of decisions, and what `csada monitor` makes of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import chromium
from made import made_evidence
from test_cli import inside, refused

import csada
from csada.decisions import choose
from csada.decisions.shift import Chunk, Reference, bbse_frequencies, em_frequencies, features
from csada.logbook import Log, Reading
from csada.manifest import deployed
from csada.report.monitor import page
from csada.workflow.late import recalibrate
from csada.workflow.monitor import Bounds, monitor
from csada.workflow.versions import read_priors

CLASSES = ("ants", "<b>bees</b>", "crabs", "dogs")
K, SURE = len(CLASSES), 3.0
COSTS = csada.CostMatrix(np.array([[0, 1, 2, 20], [1, 0, 5, 1], [3, 1, 0, 1], [8, 1, 1, 0]], float), CLASSES)


def cases(seed, n, frequencies=None, sure=SURE):
    """Points around the corners of a simplex, and their classes."""
    draw = np.random.default_rng(seed)
    y = draw.choice(K, n, p=frequencies)
    return (draw.normal(size=(n, K)) + sure * np.eye(K)[y]).astype(np.float32), y


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A linear classifier of those points, which is the best one, with the evidence that `csada fit` leaves."""
    x, y = cases(0, 1500)
    network = csada.models.create("mlp", K, features=K, hidden=())
    with torch.no_grad():
        network.fc.weight.copy_(SURE * torch.eye(K))
        network.fc.bias.zero_()
    evidence = made_evidence(
        "before + rule", CLASSES, {"before": choose(SURE * x, y, COSTS)}, costs=COSTS.values, pictures=False
    )
    arrays = {**evidence.arrays, "validation_labels": y, "before_validation": SURE * x}
    splits = csada.Splits(*[csada.Part(torch.zeros(K, K), torch.arange(K))] * 3, CLASSES, "animals")
    made = csada.Classifier.of(network, splits, COSTS, architecture="mlp", arguments={"features": K, "hidden": []})
    rule = evidence.rules["before"]
    return replace(made, decision=rule, evidence=replace(evidence, arrays=arrays)).save(
        tmp_path_factory.mktemp("m") / "model"
    )


@pytest.fixture(scope="module")
def classifier(folder):
    return csada.Classifier.load(folder)


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def rewritten(path, change):
    """The same log, each line changed by `change(number, values)`; None leaves it as it is."""
    lines = []
    for i, values in enumerate(entries(path)):
        change(i, values)
        lines.append(json.dumps(values))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def log(classifier, tmp_path):
    """600 decisions at other class frequencies than validation's."""
    x, _ = cases(1, 600, [0.55, 0.25, 0.15, 0.05])
    classifier.log(tmp_path / "log.jsonl", x, ids=range(600))
    return tmp_path / "log.jsonl"


# -- the log ---------------------------------------------------------------------------------------------


def test_a_line_says_what_was_decided_and_by_which_model(classifier, folder, log):
    x, _ = cases(1, 600, [0.55, 0.25, 0.15, 0.05])
    found = entries(log)
    assert list(found[0]) == ["time", "id", "input", "probabilities", "predicted", "expected_cost", "referred", "model"]
    assert [each["predicted"] for each in found] == [CLASSES[k] for k in classifier.predict(x)]
    np.testing.assert_allclose(
        [each["probabilities"] for each in found], classifier.probabilities(x), rtol=1e-5, atol=1e-12
    )
    np.testing.assert_allclose([each["expected_cost"] for each in found], classifier.decide(x)[2], rtol=1e-5)
    assert {each["model"] for each in found} == {classifier.fingerprint} == {deployed(folder).fingerprint}
    assert found[3]["input"] == sha256(x[3].tobytes()).hexdigest() and found[3]["id"] == "3"
    assert datetime.now(UTC) - datetime.fromisoformat(found[0]["time"]) < timedelta(minutes=5)


def test_another_rule_or_other_costs_are_another_model(classifier):
    stronger = replace(classifier, decision=replace(classifier.decision, temperature=2.0))
    dearer = replace(classifier, costs=csada.CostMatrix(2 * COSTS.values, CLASSES), evidence=None)
    assert len({classifier.fingerprint, stronger.fingerprint, dearer.fingerprint}) == 3


def test_predict_logs_what_it_prints_for_folder_and_exported_file_alike(classifier, folder, tmp_path):
    x, _ = cases(2, 40)
    table = tmp_path / "rows.csv"
    table.write_text("a,b,c,d\n" + "\n".join(",".join(f"{v:.4f}" for v in row) for row in x) + "\nnonsense,1,2,3\n")
    onnx = tmp_path / "model.onnx"
    classifier.export(onnx)
    logs = []
    for model in (folder, onnx):
        out, path = tmp_path / "decided.jsonl", tmp_path / f"{model.name}.jsonl"
        run = inside("predict", model, table, "--format", "jsonl", "--out", out, "--log", path)
        assert run.returncode == 1, run.stderr  # the last row cannot be read
        printed = entries(out)
        logged = entries(path)
        assert len(printed) == 41 and [each["predicted"] for each in logged] == [each["class"] for each in printed[:40]]
        assert [each["expected_cost"] for each in logged] == [each["expected_cost"] for each in printed[:40]]
        logs.append([{key: each[key] for key in ("input", "predicted", "referred", "model")} for each in logged])
    assert logs[0] == logs[1]
    assert logs[0][0]["input"] == sha256(",".join(f"{v:.4f}" for v in x[0]).encode()).hexdigest()


WRITER = """
import sys
from csada.logbook import Log
import numpy as np
with Log(sys.argv[1], "m", ["a", "b"]) as log:
    for i in range(100_000):
        n = 50
        log.write((np.zeros(n, int), np.ones(n), np.zeros(n), np.zeros(n, bool), np.tile([.75, .25], (n, 1))), [b"x"] * n,
                  [f"{sys.argv[2]}-{i}-{j}" for j in range(n)])
        print(i, flush=True)
        if i == int(sys.argv[3]):
            break
"""


def test_four_writers_two_of_them_killed_lose_nothing_that_was_acknowledged(tmp_path):
    log = tmp_path / "log.jsonl"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, log, str(w), "99999" if w < 2 else "60"], stdout=subprocess.PIPE
        )
        for w in range(4)
    ]
    acknowledged = {}
    for process in writers[:2]:
        for _ in range(30):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    for w, process in enumerate(writers):
        rest = process.communicate()[0].split()
        acknowledged[w] = int(rest[-1]) if rest else 29
        assert process.returncode == (-signal.SIGKILL if w < 2 else 0)
    found, damaged = set(), 0
    for line in log.read_bytes().splitlines():
        try:
            found.add(json.loads(line)["id"])
        except ValueError:
            damaged += 1
    assert damaged <= 2
    for w, last in acknowledged.items():
        assert last >= 29
        assert {f"{w}-{i}-{j}" for i in range(last + 1) for j in range(50)} <= found
    reading = Reading(log, "m", ["a", "b"])
    assert sum(map(len, reading.batches())) == len(found) == reading.lines - damaged


def test_half_a_line_does_not_swallow_the_next(log, classifier):
    text = log.read_bytes()
    log.write_bytes(text[:-40])  # killed while it wrote
    classifier.log(log, cases(3, 10)[0])
    reading = Reading(log, classifier.fingerprint, CLASSES)
    assert sum(map(len, reading.batches())) == 599 + 10
    assert reading.skipped == {"not a line of the schema (half written or damaged)": 1}


def test_the_log_is_no_device_and_a_full_disk_is_told(tmp_path):
    with pytest.raises(csada.InputError, match="not a regular file"):
        Log("/dev/null", "m", ["a", "b"])
    if Path("/dev/full").exists():
        log = Log(tmp_path / "log", "m", ["a"])
        log.file = os.open("/dev/full", os.O_WRONLY)
        with pytest.raises(csada.RunError, match="cannot be written: No space left on device"):
            log.append(b"x\n")


# -- frequencies, bands and change, against the truth -----------------------------------------------------


def simulated(reference, seed, sure=SURE, n=300):
    draw = np.random.default_rng(seed)
    q = draw.dirichlet(np.ones(K))
    x, y = cases(draw, n, q, sure)
    rule = choose(SURE * cases(0, 1500)[0], cases(0, 1500)[1], COSTS).automatic(COSTS)
    return Chunk(reference, rule.probabilities(SURE * x), np.asarray(rule(SURE * x))), y


@pytest.fixture(scope="module")
def reference():
    x, y = cases(0, 1500)
    rule = choose(SURE * x, y, COSTS).automatic(COSTS)
    return Reference(rule.probabilities(SURE * x), y, np.asarray(rule(SURE * x)), COSTS.values)


def test_the_band_holds_the_real_cost_and_frequencies_are_found(reference):
    held, widths, away = [], [], []
    for seed in range(60):
        chunk, y = simulated(reference, seed)
        cost, paid = chunk.mean_cost(), COSTS.values[y, chunk.predicted]
        held.append(cost.band.low <= paid.mean() <= cost.band.high)
        widths.append((cost.band.high - cost.band.low) / (2 * 1.96 * max(paid.std(), 1e-9) / np.sqrt(len(y))))
        true = np.bincount(y, minlength=K) / len(y)
        estimates = chunk.frequencies, chunk.frequencies_by_counts, reference.frequencies
        away.append([np.abs(f - true).sum() / 2 for f in estimates])
    em, bbse, none = np.mean(away, 0)
    assert 0.9 <= np.mean(held) <= 1 and np.median(widths) <= 2
    assert em < none / 4 and bbse < none / 4 and em <= bbse


def test_frequencies_alone_are_no_change_and_damage_is_one(reference):
    assert np.mean([simulated(reference, seed)[0].change.found for seed in range(60)]) <= 0.05
    assert np.mean([simulated(reference, seed, sure=2.2)[0].change.found for seed in range(40)]) >= 0.95


def test_estimates_agree_with_their_definitions():
    """EM by a plain loop over samples; BBSE where the counts are exact gives the frequencies back."""
    draw = np.random.default_rng(0)
    p, prior = draw.dirichlet(np.ones(3), 50), np.array([0.5, 0.3, 0.2])
    q = prior.copy()
    for _ in range(2000):
        new = np.zeros(3)
        for row in p:
            weighted = [row[k] * q[k] / prior[k] for k in range(3)]
            new += np.array(weighted) / sum(weighted)
        q = new / len(p)
    np.testing.assert_allclose(em_frequencies(p, prior, tolerance=1e-9, rounds=2000), q, atol=1e-6)
    rates, true = np.array([[0.9, 0.1, 0], [0.2, 0.7, 0.1], [0, 0.3, 0.7]]), np.array([0.1, 0.2, 0.7])
    np.testing.assert_allclose(bbse_frequencies(prior[:, None] * rates, true @ rates), true, atol=1e-9)


def test_counts_of_all_pairs_at_once_are_those_of_each(reference):
    referring = replace(reference, predicted=np.where(np.arange(1500) % 7, reference.predicted, -1))
    pairs = [(y, z) for y in range(K) for z in range(K) if y != z]
    for known in (reference, referring):
        chunk, _ = simulated(known, 3)
        chunk = replace(chunk, predicted=np.where(np.arange(300) % 5, chunk.predicted, -1))
        for (y, z), *found in zip(pairs, *chunk.counts(pairs), strict=True):
            only = np.zeros((K, K))
            only[y, z] = 1
            value, band = chunk.estimate(only)
            np.testing.assert_allclose(found, [value, *band], rtol=1e-9, atol=1e-15)


def test_a_referred_case_costs_its_price_for_certain(reference):
    referring = replace(reference, predicted=np.full(len(reference.truth), -1), referral_cost=0.3)
    p = reference.probabilities[:100]
    cost = Chunk(referring, p, np.full(100, -1)).mean_cost()
    assert cost.value == pytest.approx(0.3) and cost.band == pytest.approx((0.3, 0.3))


# -- the command ------------------------------------------------------------------------------------------


def test_monitor_tells_cost_pairs_and_frequencies_and_ends_well(folder, log, tmp_path):
    run = inside("monitor", folder, log, "--every", "300", "--json", "--suggest-priors", tmp_path / "priors.csv")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)["found"]
    assert [each["name"] for each in found["periods"]] == ["1 to 300", "301 to 600"]
    last = found["periods"][-1]
    assert last["cost"]["band"]["low"] < last["cost"]["value"] < last["cost"]["band"]["high"]
    assert {"truth": "ants", "predicted": "dogs"}.items() <= last["pairs"][0].items()
    np.testing.assert_allclose(last["frequencies"], [0.55, 0.25, 0.15, 0.05], atol=0.08)
    np.testing.assert_allclose(last["frequencies"], last["frequencies_by_counts"], atol=0.05)
    rows = [line.split(",") for line in (tmp_path / "priors.csv").read_text().splitlines()]
    assert rows[0] == ["class", "frequency", "period"] and [name for name, *_ in rows[1:]] == list(CLASSES)
    assert sum(float(share) for _, share, _ in rows[1:]) == pytest.approx(1, abs=1e-5)


def test_every_critical_pair_is_counted(folder, log, tmp_path):
    """There were five, whatever the costs."""
    known = csada.Classifier.load(folder)
    costs = csada.CostMatrix(COSTS.values * np.linspace(1, 2, K * K).reshape(K, K), CLASSES)
    evidence = replace(known.evidence, arrays={**known.evidence.arrays, "costs": costs.values})
    other = replace(known, costs=costs, evidence=evidence)
    other.save(tmp_path / "model")
    rewritten(log, lambda _, values: values.update(model=other.fingerprint))
    found = monitor(tmp_path / "model", log, "600")
    told = found.newest.pairs
    assert len(told) == found.critical == K * (K - 1) - 1
    assert [each.cost for each in told] == sorted((each.cost for each in told), reverse=True)


def test_alarms_are_rules_of_the_project_and_set_the_exit_code(folder, log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "csada.toml").write_text(
        f'[monitor]\nmodel = "{folder}"\nlog = "log.jsonl"\nevery = "300"\nfrequency-change = 0.2\ncost-rise = 0.0\n'
        '[monitor.pair]\n"ants > crabs" = 0.0001\n'
    )
    run = inside("monitor", "--json")
    assert run.returncode == 1, run.stderr
    told = json.loads(run.stdout)
    alarms, period, trusted = told["alarms"], told["period"], told["trusted"]
    assert (period, trusted) == ("301 to 600", True) and told["found"]["critical"] == 5
    assert any("class frequencies moved by" in each for each in alarms)
    (tmp_path / "csada.toml").write_text(f'[monitor]\nmodel = "{folder}"\nlog = "log.jsonl"\nevery = "300"\n')
    assert inside("monitor").returncode == 0
    (tmp_path / "csada.toml").write_text(f'[monitor]\nmodel = "{folder}"\nlog = "log.jsonl"\ncost-raise = 1\n')
    assert "unknown key 'cost_raise' in [monitor]" in refused("monitor")
    (tmp_path / "csada.toml").unlink()
    assert "unknown class 'ant'" in refused("monitor", folder, log, "--pair", "ant>dogs=0.1")
    assert "names 'ants' twice" in refused("monitor", folder, log, "--pair", "ants>ants=0.1")
    assert "is not TRUTH>PREDICTED=SHARE" in refused("monitor", folder, log, "--pair", "ants>dogs=ten")
    assert "give day, week or a number" in refused("monitor", folder, log, "--every", "month")


def test_a_bound_on_a_pair_counts_from_what_is_surely_above_it(folder, log):
    quiet, loud = (monitor(folder, log, "600", Bounds({("ants", "crabs"): bound})) for bound in (0.5, 0.0))
    (pair, *_), (period,) = loud.newest.pairs, loud.periods
    assert (pair.truth, pair.predicted) == ("ants", "crabs") and not quiet.newest.alarms
    assert bool(period.alarms) == (pair.rate_low > 0) and pair.low <= pair.expected <= pair.high


def test_late_labels_set_the_truth_beside_the_estimate(folder, log, tmp_path):
    _, y = cases(1, 600, [0.55, 0.25, 0.15, 0.05])
    late = tmp_path / "late.csv"
    late.write_text("id,label\n" + "".join(f"{i},{CLASSES[y[i]]}\n" for i in range(300, 700 - 100)) + "9999,ants\n")
    found = monitor(folder, log, "300", labels=late)
    assert found.periods[0].truth is None and found.periods[1].truth.labelled == 300
    z = csada.Classifier.load(folder).predict(cases(1, 600, [0.55, 0.25, 0.15, 0.05])[0])[300:]
    assert found.periods[1].truth.mean_cost == pytest.approx(COSTS.values[y[300:], z].mean())
    assert "301 labels of" in found.notes[-1] and "belong to 300 logged decisions" in found.notes[-1]
    assert found.offer is None  # nothing to gain, nothing offered
    shown = inside("monitor", folder, log, "--every", "300", "--labels", late).stdout
    real, newest = f"{100 * found.newest.truth.mean_cost:.2f} (300)", found.newest
    assert real in shown and "by probabilities" in shown
    for share, other in zip(newest.frequencies, newest.frequencies_by_counts, strict=True):
        assert re.search(rf"{100 * share:.1f} % +{100 * other:.1f} %", shown)
    with pytest.raises(csada.InputError, match="nothing is written"):
        recalibrate(folder, log, found.offer, tmp_path / "new")
    late.write_text("id,label\n1,ants\n2,bee\n")
    assert "line 3: unknown class 'bee'" in refused("monitor", folder, log, "--labels", late)
    late.write_text("id,label\n1,ants\n1,dogs\n")
    assert "1 has two labels" in refused("monitor", folder, log, "--labels", late)
    late.write_text("name,label\n1,ants\n")
    assert "label is needed, and input or id" in refused("monitor", folder, log, "--labels", late)
    late.write_text("id,label,label\n1,ants,dogs\n")
    assert "several columns named 'label'" in refused("monitor", folder, log, "--labels", late)
    late.write_text("")
    assert "has the columns none; label is needed" in refused("monitor", folder, log, "--labels", late)


def labelled(path, rows, header="id,label"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_an_empty_name_of_a_case_labels_nothing(folder, classifier, tmp_path):
    """It was the label of every decision without such a name."""
    classifier.log(log := tmp_path / "log.jsonl", (x := cases(1, 60)[0]))  # no ids
    late = labelled(tmp_path / "late.csv", ["7,dogs", ",ants"])
    assert f"{late}, line 3: id is empty; name the case" in refused("monitor", folder, log, "--labels", late)
    labelled(late, ["7,dogs"])
    assert monitor(folder, log, "60", labels=late).periods[0].truth is None
    inputs = [sha256(row.tobytes()).hexdigest() for row in x[:2]]
    classifier.log(log, x[2:3], ids=["own"])
    labelled(late, [f"{inputs[0]},,ants", ",own,dogs", f"{inputs[1]},else,"], "input,id,label")
    found = monitor(folder, log, "60", labels=late)
    assert "2 labels of" in found.notes[0] and "belong to 2 logged decisions" in found.notes[0]
    assert f"1 row of {late} has no label yet" in found.notes


def test_an_id_of_several_cases_has_no_label_and_a_repeated_case_is_told(folder, classifier, tmp_path):
    """Row numbers that start anew in each batch: one label went to all cases of that number."""
    log, ((first, y), (second, z)) = tmp_path / "log.jsonl", (cases(seed, 60) for seed in (1, 2))
    classifier.log(log, first, ids=range(60))
    classifier.log(log, second, ids=range(50, 110))
    late = labelled(tmp_path / "late.csv", [f"{i},{CLASSES[k]}" for i, k in enumerate([*y, *z[10:]])])
    found = monitor(folder, log, "120", labels=late)
    assert found.periods[0].truth.labelled == 100
    assert "110 labels" in found.notes[0] and "left out 10 labels" in found.notes[1]
    classifier.log(log, first[:20], ids=range(20))  # written again
    found = monitor(folder, log, "140", labels=late)
    assert found.periods[0].truth.labelled == 120
    assert "120 logged decisions; 20 of these repeat an earlier one on the same case" in found.notes[0]
    rewritten(log, lambda _, values: values.pop("input"))  # then nobody knows whether it is the same case
    assert "left out 30 labels" in monitor(folder, log, "140", labels=late).notes[1]


def test_two_labels_for_one_decision_are_refused(folder, log, tmp_path):
    late = labelled(tmp_path / "late.csv", [f"{entries(log)[5]['input']},,ants", ",5,dogs"], "input,id,label")
    assert "two labels for one decision" in refused("monitor", folder, log, "--labels", late)


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2300-01-01T00:00:00Z"])
def test_a_time_that_cannot_be_is_a_line_left_out(folder, log, when):
    rewritten(log, lambda i, values: values.update(time=when) if i == 7 else None)
    for every in ("300", "day"):
        (note,) = monitor(folder, log, every).notes
        assert re.fullmatch("left out 1 of 600 lines: with a time (before 1970|more than an hour ahead.*)", note)


def test_a_number_too_large_for_any_float_is_a_line_left_out(folder, log):
    def spoil(i, values):
        if i == 7:
            values["probabilities"][0] = 10**400

    (note,) = monitor(folder, rewritten(log, spoil), "300").notes
    assert "left out 1 of 600 lines: with probabilities that" in note


def test_one_line_ahead_is_one_step_back(folder, log):
    """It made each line after it one that came too early."""
    later = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    rewritten(log, lambda i, values: values.update(time=later) if i == 0 else None)
    (note,) = monitor(folder, log, "300").notes
    assert note.startswith("the time goes back by more than 60 s once:")


def test_a_clock_that_is_far_ahead_makes_no_newest_period(folder, log):
    """A hundred years ahead, its week was the newest: alarms and frequencies came from there."""

    def ahead(i, values):
        if i >= 530:
            values["time"] = values["time"].replace(values["time"][:2], "21", 1)

    found = monitor(folder, rewritten(log, ahead), "week")
    assert len(found.periods) == 1 and found.newest.decisions == 530
    assert found.notes == ("left out 70 of 600 lines: with a time more than an hour ahead of this machine's clock",)


def test_copies_of_lines_are_left_out_and_the_same_case_again_is_not(folder, classifier, tmp_path):
    """A log that was joined with a copy of itself had twice the counts, without a word."""
    log, x = tmp_path / "log.jsonl", cases(1, 300)[0]
    for start in range(0, 300, 100):
        classifier.log(log, x[start : start + 100])
        time.sleep(0.002)
    classifier.log(log, x[:100])  # decided again
    assert monitor(folder, log, "400").notes == ()
    log.write_bytes(2 * log.read_bytes())
    found = monitor(folder, log, "400")
    assert found.notes == ("left out 400 of 800 lines: copies of an earlier line",)
    assert [each.decisions for each in found.periods] == [400]
    classifier.log(twice := tmp_path / "twice.jsonl", np.concatenate([x[:60], x[:60]]))  # in a batch that is no copy
    found = monitor(folder, twice, "120")
    assert found.newest.decisions == 120 and found.notes[0].startswith("60 of 120 lines repeat one of the same moment")


@pytest.mark.parametrize("cost", [None, -0.1, True, "0.1", float("nan"), float("inf")])
def test_an_expected_cost_that_is_none_is_a_line_left_out(folder, log, cost):
    def spoil(_, values):
        if cost is None:
            del values["expected_cost"]
        else:
            values["expected_cost"] = cost

    told = "not a line of the schema" if cost is None else "with an expected cost that is no number of zero or more"
    assert f"600 {told}" in refused("monitor", folder, rewritten(log, spoil))


def test_true_and_false_are_no_probabilities(folder, log):
    rewritten(log, lambda i, values: values.update(probabilities=[True, False, False, 0]) if i == 7 else None)
    assert monitor(folder, log, "300").notes == ("left out 1 of 600 lines: with probabilities that are no numbers",)


def test_decisions_that_the_rule_would_not_make_are_counted(folder, classifier, log):
    """A program that mixed up the classes was believed."""
    assert monitor(folder, log, "300").notes == ()
    rewritten(log, lambda i, values: values.update(probabilities=[round(p, 4) for p in values["probabilities"]]))
    assert monitor(folder, log, "300").notes == ()  # a program that keeps four digits
    other = dict(zip(CLASSES, [*CLASSES[1:], CLASSES[0]], strict=True))
    rewritten(log, lambda i, values: values.update(predicted=other[values["predicted"]]) if i < 70 else None)
    (note,) = monitor(folder, log, "300").notes
    assert note.startswith("70 logged decisions differ from what the model's rule makes of the probabilities")
    rewritten(log, lambda i, values: values.update(referred=True))  # a person may decide otherwise
    assert not any("differ from" in each for each in monitor(folder, log, "300").notes)


def test_a_recalibration_is_offered_and_written_only_where_asked_and_to_a_new_folder(folder, classifier, tmp_path):
    x, y = cases(5, 1200, sure=1.5)  # the classes came closer: the old probabilities are far too sure
    classifier.log(log := tmp_path / "log.jsonl", x)
    late = tmp_path / "late.csv"
    late.write_text(
        "input,label\n"
        + "".join(f"{sha256(r.tobytes()).hexdigest()},{CLASSES[k]}\n" for r, k in zip(x, y, strict=True))
    )
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    found = monitor(folder, log, "1200", labels=late)
    assert found.newest.change.found and found.offer is not None and found.offer.after < found.offer.before
    run = inside("monitor", folder, log, "--every", "1200", "--labels", late, "--recalibrate", tmp_path / "new")
    assert run.returncode == 1 and "the estimate is not to be trusted" in run.stderr  # the alarm is still one
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    new = csada.Classifier.load(tmp_path / "new")
    fresh, truth = cases(6, 2000, sure=1.5)
    entropy = [-np.log(c.probabilities(fresh)[np.arange(2000), truth]).mean() for c in (classifier, new)]
    assert entropy[1] < entropy[0] and new.fingerprint != classifier.fingerprint
    told = (tmp_path / "new" / "CHANGES.md").read_text()
    assert f"Made from model ({classifier.fingerprint})" in told and str(folder) not in told
    assert re.search(r"\n## 20\d\d-\d\d-\d\dT", told) and "- the calibration of the scores" in told
    assert "is there already" in refused("monitor", folder, log, "--labels", late, "--recalibrate", tmp_path / "new")


def test_two_new_versions_do_not_take_the_same_folder(folder, classifier, tmp_path):
    x, y = cases(5, 1200)
    y[::4] = y[::-4]  # scores as ever, but labels say that they are too sure
    classifier.log(log := tmp_path / "log.jsonl", x)
    names = [sha256(row.tobytes()).hexdigest() for row in x]
    rows = [f"{name},{CLASSES[k]}" for name, k in zip(names, y, strict=True)]
    late = labelled(tmp_path / "late.csv", rows, "input,label")
    found = monitor(folder, log, "1200", labels=late)
    assert found.newest.trusted and found.offer is not None  # so both can be written
    words = ("--labels", late, "--recalibrate", tmp_path / "new", "--suggest-priors", tmp_path / "new")
    assert "is there already; a new version" in refused("monitor", folder, log, "--every", "1200", *words)


def test_a_recalibrated_model_is_compared_with_the_labelled_decisions(folder, classifier, tmp_path):
    """It was compared with the validation samples of old, and so it raised an alarm for ever."""

    def late_for(log, x, y):
        names = [sha256(row.tobytes()).hexdigest() for row in x]
        return labelled(
            tmp_path / "late.csv", [f"{n},{CLASSES[k]}" for n, k in zip(names, y, strict=True)], "input,label"
        )

    x, y = cases(5, 1200, sure=1.5)
    classifier.log(log := tmp_path / "log.jsonl", x)
    found = monitor(folder, log, "1200", labels=late_for(log, x, y))
    assert not found.newest.trusted
    new = csada.Classifier.load(recalibrate(folder, log, found.offer, tmp_path / "new"))
    p = np.exp(
        new.evidence.logits("before", "validation") @ new.decision.automatic(COSTS).affine[0]
        + new.decision.automatic(COSTS).affine[1]
    )
    np.testing.assert_allclose(new.probabilities(x), p / p.sum(1, keepdims=True), rtol=1e-3, atol=1e-5)
    fresh, truth = cases(6, 600, [0.55, 0.25, 0.15, 0.05], sure=1.5)
    new.log(log2 := tmp_path / "log2.jsonl", fresh)
    later = monitor(tmp_path / "new", log2, "600")
    assert later.newest.trusted and not later.newest.alarms
    paid = COSTS.values[truth, new.predict(fresh)].mean()
    assert later.newest.cost.band.low <= paid <= later.newest.cost.band.high
    harder, y = cases(7, 1200, sure=0.8)  # and once more
    new.log(log3 := tmp_path / "log3.jsonl", harder)
    found = monitor(tmp_path / "new", log3, "1200", labels=late_for(log3, harder, y))
    assert not found.newest.trusted
    newer = csada.Classifier.load(recalibrate(tmp_path / "new", log3, found.offer, tmp_path / "newer"))
    newer.log(log4 := tmp_path / "log4.jsonl", cases(8, 600, sure=0.8)[0])
    assert monitor(tmp_path / "newer", log4, "600").newest.trusted
    told = (tmp_path / "newer" / "CHANGES.md").read_text()
    assert told.startswith((tmp_path / "new" / "CHANGES.md").read_text().rstrip()) and told.count("\n## ") == 2


def test_frequencies_become_a_new_version_where_they_are_to_be_trusted(folder, classifier, log, tmp_path):
    run = inside("monitor", folder, log, "--every", "600", "--suggest-priors", tmp_path / "new")
    assert run.returncode == 0, run.stderr
    new, told = csada.Classifier.load(tmp_path / "new"), (tmp_path / "new" / "CHANGES.md").read_text()
    assert new.fingerprint != classifier.fingerprint and "class frequencies in deployment: ants 5" in told
    assert "600 decisions" in told and classifier.fingerprint in told
    x, y = cases(11, 4000, [0.55, 0.25, 0.15, 0.05])
    entropy = [-np.log(c.probabilities(x)[np.arange(4000), y]).mean() for c in (classifier, new)]
    assert entropy[1] < entropy[0]
    new.log(tmp_path / "log2.jsonl", x[:600])
    assert monitor(tmp_path / "new", tmp_path / "log2.jsonl", "600").newest.trusted
    assert "a new version gets a new folder" in refused("monitor", folder, log, "--suggest-priors", tmp_path / "new")
    classifier.log(hurt := tmp_path / "hurt.jsonl", cases(8, 600, sure=1.5)[0])
    told = refused("monitor", folder, hurt, "--every", "600", "--suggest-priors", tmp_path / "other")
    assert "in 1 to 600 more changed" in told and not (tmp_path / "other").exists()


def test_a_class_that_did_not_come_keeps_a_frequency(folder, classifier, tmp_path):
    """It was 0.000000, after which the class could never be decided again."""
    classifier.log(log := tmp_path / "log.jsonl", cases(1, 60, [1.0, 0, 0, 0])[0])
    run = inside("monitor", folder, log, "--every", "60", "--suggest-priors", tmp_path / "priors.csv")
    assert run.returncode == 0 and "no case of" in run.stderr and "as if one case more" in run.stderr
    shares = read_priors(tmp_path / "priors.csv", CLASSES)
    assert 0 < shares.min() < 1 / 60 and shares[0] > 0.9


def test_a_line_without_an_end_is_no_log(tmp_path):
    """A file of zeros was read to its end, however long that took."""
    with (tmp_path / "log").open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(csada.InputError, match=r"log has a line of more than 1,048,576 letters"):
        list(Reading(tmp_path / "log", "m", ["a", "b"]).batches())


def test_a_log_that_is_odd_is_told_line_by_line(folder, classifier, log):
    def spoil(i, values):
        if i < 5:
            values["model"] = "0123456789abcdef"
        elif i < 8:
            values["probabilities"][0] += 0.2
        elif i < 10:
            values["predicted"] = "elephants"
        elif i < 11:
            values["probabilities"] = values["probabilities"][:-1]
        elif i < 12:
            values["time"] = "yesterday"
        elif i in (300, 301):
            values["time"] = "2020-01-01T00:00:00Z"

    rewritten(log, spoil)
    with log.open("a") as file:
        file.write('{"time":"2026-01-01T00:00:00Z","probab')
    found = monitor(folder, log, "300")
    told = "\n".join(found.notes)
    assert "left out 5 of 601 lines: of another model (0123456789abcdef)" in told
    assert "left out 4 of 601 lines: with probabilities that do not sum to one, or not one per class" in told
    assert "left out 2 of 601 lines: of a class that the model does not have" in told
    assert "left out 2 of 601 lines: not a line of the schema (half written or damaged)" in told
    assert "the time goes back by more than 60 s once" in told
    assert sum(each.decisions for each in found.periods) == 601 - 13


def test_days_without_decisions_and_with_too_few_have_no_numbers(folder, log):
    def dated(i, values):
        day = 1 if i < 300 else 4 if i < 590 else 5
        values["time"] = f"2026-03-{day:02}T10:00:00+02:00"

    found = monitor(folder, rewritten(log, dated), "day")
    named = [(each.name, each.decisions, each.cost is None) for each in found.periods]
    assert named == [
        ("2026-03-01", 300, False),
        ("2026-03-02 to 2026-03-03", 0, True),
        ("2026-03-04", 290, False),
        ("2026-03-05", 10, True),
    ]
    assert found.newest.name == "2026-03-04"
    printed = inside("monitor", folder, log, "--every", "day").stdout
    low, high = (f"{100 * end:.2f}" for end in found.newest.cost.band)
    assert "2026-03-02 to 2026-03-03" in printed and f"{low} to {high}" in printed and "\u2026" not in printed
    assert [each.name for each in monitor(folder, log, "week").periods] == ["week of 2026-02-23", "week of 2026-03-02"]


def test_a_log_of_nothing_usable_is_refused(folder, log, tmp_path):
    (tmp_path / "empty").write_text("\n\n")
    assert "holds no decisions" in refused("monitor", folder, tmp_path / "empty")
    assert "cannot be read" in refused("monitor", folder, tmp_path / "none")
    rewritten(log, lambda i, values: values.update(model="f" * 16))
    assert (
        f"can be used for {folder}" in (told := refused("monitor", folder, log))
        and "600 of another model (ffff" in told
    )
    plain = replace(csada.Classifier.load(folder), evidence=None).save(tmp_path / "plain")
    assert "holds no validation scores" in refused("monitor", plain, log)


# -- the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_opens_and_says_when_not_to_trust_it(folder, classifier, tmp_path, theme):
    log = tmp_path / "log.jsonl"
    classifier.log(log, cases(7, 400)[0])
    fine = page(monitor(folder, log, "200"))
    classifier.log(log, cases(8, 200, sure=1.5)[0])
    found = monitor(folder, log, "200")
    (tmp_path / "page.html").write_text(text := page(found))
    assert "No alarm." in fine and "estimate is not to be trusted" in text
    with chromium() as browser:
        wrong = []
        tab = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=theme)
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.goto((tmp_path / "page.html").as_uri())
        assert "Do not trust these estimates." in tab.locator(".banner").inner_text()
        assert "not to be trusted" in tab.locator("#periods tbody tr").last.inner_text()
        assert tab.locator("#cost svg .diamond").count() == 2  # the legend's and the period's
        assert (
            tab.locator("#frequencies tbody tr").count() == K
            and "<b>bees</b>" in tab.locator("#frequencies").inner_text()
        )
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not wrong


@pytest.mark.parametrize("every", ["60", "75", "100"])
def test_names_of_periods_in_a_chart_do_not_overlap(folder, log, tmp_path, every):
    found = monitor(folder, log, every)
    (tmp_path / "page.html").write_text(page(found))
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1200, "height": 800})
        tab.goto((tmp_path / "page.html").as_uri())
        places = tab.eval_on_selector_all(
            "#cost-chart text",
            "all => all.filter(t => / to /.test(t.textContent)).map(t => [t.textContent, t.getBoundingClientRect()])",
        )
    places.sort(key=lambda each: each[1]["left"])
    assert len(places) >= 2 and places[-1][0] == found.periods[-1].name
    for (_, one), (_, other) in pairwise(places):
        assert one["right"] < other["left"]


def test_charts_name_periods_leave_gaps_and_pairs_are_counted(folder, log):
    """Periods without an estimate were left out, so that days stood side by side that were weeks apart."""
    days = [1] * 250 + [2] * 10 + [4] * 250 + [5] * 90
    rewritten(log, lambda i, values: values.update(time=f"2026-03-0{days[i]}T10:00:00Z"))
    found = monitor(folder, log, "day")
    text = page(found)
    charts = {name: text.split(f'id="{name}-chart"')[1].split("</svg>")[0] for name in ("cost", "pairs")}
    assert charts["cost"].count("<polygon") == 2 and charts["cost"].count("<polyline") == 3  # two runs, and validation
    assert "2026-03-01</text>" in charts["cost"] and "2026-03-05</text>" in charts["pairs"] and "nan" not in text
    assert "ants \u2192 dogs" in charts["pairs"] and "more critical pairs" not in text
    assert "of 9 critical pairs" in page(replace(found, critical=9))
    many = page(replace(found, periods=(replace(found.newest, pairs=3 * found.newest.pairs),)))
    assert "<summary>5 more critical pairs</summary>" in many and many.count("ants</bdi></th><td><bdi>dogs") == 3
    assert "3 of 5 periods have enough decisions and so both estimates" in text


# -- the schema, without csada -----------------------------------------------------------------------------


def test_the_guide_shows_what_was_measured(monkeypatch):
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(root / "benchmarks")
    from monitor import log_table, speed_table, table

    record = json.loads((root / "results" / "monitor.json").read_text())
    assert table(record) in (root / "docs" / "monitoring.md").read_text()
    page_of_benchmarks = (root / "docs" / "benchmarks.md").read_text()
    assert speed_table(record) in page_of_benchmarks and log_table(record) in page_of_benchmarks


def test_ten_lines_without_csada_write_a_log(folder, classifier, tmp_path):
    """The documented programs, run as they are, in a process that cannot import csada."""
    shown = (Path(__file__).parents[1] / "docs" / "monitoring.md").read_text()
    (writer,) = re.findall(r"^```py\n(# log\.py.*?)^```", shown, re.DOTALL | re.MULTILINE)
    assert len(writer.strip().splitlines()) <= 12
    (tmp_path / "log.py").write_text(writer)
    x, _ = cases(9, 100)
    chosen, _, costs, refer, p, *_ = classifier.decide(x)
    cases_ = [
        (row.tobytes().hex(), q.tolist(), CLASSES[k], float(c), bool(r))
        for row, q, k, c, r in zip(x, p, chosen, costs, refer, strict=True)
    ]
    (tmp_path / "use.py").write_text(
        "import sys, json; sys.modules['csada'] = None\nfrom log import log\n"
        "for content, *rest in json.load(open('cases.json')):\n"
        f"    log('log.jsonl', bytes.fromhex(content), *rest, '{classifier.fingerprint}')\n"
    )
    (tmp_path / "cases.json").write_text(json.dumps(cases_))
    subprocess.run([sys.executable, "use.py"], cwd=tmp_path, check=True)
    found = monitor(folder, tmp_path / "log.jsonl", "100")
    assert found.notes == () and found.periods[0].decisions == 100
    assert entries(tmp_path / "log.jsonl")[0]["input"] == sha256(x[0].tobytes()).hexdigest()


def test_many_classes_of_a_sample_each_have_a_limit_of_change():
    """Nothing is known of how samples of a class differ, and no matrix of that can be inverted."""
    k = 150
    scores = np.random.default_rng(0).normal(size=(k, k)) + 4 * np.eye(k)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    reference = Reference(p, np.arange(k), p.argmax(1), 1.0 - np.eye(k))
    assert reference._moments.distance(features(p[:100])) >= 0 and np.isfinite(reference.limit(100))
