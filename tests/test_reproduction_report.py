"""Tables and figures say what the records say. All records here are made up, with counts small enough to check by hand."""

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.paper import EXPERIMENTS, published, reproduction
from csada.paper import record as records
from csada.paper.record import RecordFile, read_records
from csada.paper.reproduction import FIGURES, TABLES, write_figures, write_tables
from csada.paper.tables import Table, Value, comma_separated, latex, markdown
from csada.reading import build

RESULTS = Path(__file__).parents[1] / "results"
CLASSES = ["cat", "dog", "a_b&c", "<script>"]
PARETO = {"kind": "pareto", "seed": 0}


def counts(classes=CLASSES, **errors):
    """A hundred samples per class, all right but for errors given as y0z1=5: class 0 labelled as 1 five times."""
    table = 100 * np.eye(len(classes), dtype=int)
    for name, number in errors.items():
        y, z = int(name[1]), int(name[3])
        table[y, z] += number
        table[y, y] -= number
    return table.tolist()


def run(method, costs, before, after, rule=None, baseline_rule=None, seed=0, history=(), **config):
    def judged(test, ruled):
        return {
            "test": test,
            "validation": test,
            "rule": {"temperature": 1.5, "strength": 1.0, "test": ruled, "validation": ruled},
        }

    result = judged(after, rule or after) | {"baseline": judged(before, baseline_rule or before), "seconds": 1.0}
    data = {"data": "cifar10", "data_scale": 1.0, "data_options": {}, "data_seed": 0, "model": "resnet34"}
    config = data | {"kind": "method", "options": {"weight": 2.0}, "baseline": "b0"} | config
    config |= {"seed": seed, "method": method, "costs": costs}
    environment = {"csada": "0.1.0", "commit": None, "python": "3.11", "packages": {}, "device": "CPU", "threads": 1}
    lines = [{"lr": 0.1, "seconds": 1.0} | line for line in history]
    result |= {"training_loss": None}
    return {"config": config, "result": result, "history": lines, "environment": environment}


def record(experiment, runs, classes=CLASSES):
    data = {"name": "", "classes": list(classes), "samples": {}}
    found = {"experiment": experiment, "scale": "fast", "title": "t", "data": data, "classes": list(classes)}
    return found | {"planned": len(runs), "baselines": [], "runs": runs}


def parse(content):
    return records.parse(build(RecordFile, content, "the record"))


def render(content, out):
    return reproduction.render(parse(content), out)


def cells(path):
    """A CSV's rows by their first two cells, each a dict by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row.values())[:2]: row for row in csv.DictReader(file)}


def comparison():
    """Two matrices; within the first, CSADA twice and SOSR once; AP was not run."""
    before = counts(y0z1=10, y1z0=4)
    runs = [
        run("csada", PARETO, before, counts(y0z1=4, y1z0=4), rule=counts(y0z1=2), seed=0),
        run("csada", PARETO, before, counts(y0z1=6, y1z0=4), rule=counts(y0z1=4), seed=1),
        run("sosr", PARETO, before, counts(y0z1=9, y1z0=4), seed=0),
        run("csada", {"kind": "pareto", "seed": 1}, before, counts(y0z1=10, y1z0=2), seed=0),
    ]
    return record("table-cifar10", runs)


def test_comparison_is_computed_from_the_counts_within_the_first_matrix(tmp_path):
    files = render(comparison(), tmp_path)
    assert {file.name for file in files} == {
        f"table-cifar10-fast{more}.{suffix}" for more in ("", "-matrices") for suffix in ("md", "csv", "tex")
    }
    costs = CostMatrix.pareto(4, seed=0).values
    before = 100 * (10 * costs[0, 1] + 4 * costs[1, 0]) / 400
    after = [100 * (k * costs[0, 1] + 4 * costs[1, 0]) / 400 for k in (4, 6)]
    rows = cells(tmp_path / "table-cifar10-fast.csv")
    wer = rows["WER (%)", "ours"]
    assert float(wer["Baseline"]) == pytest.approx(before, rel=1e-5)
    assert float(wer["CSADA"]) == pytest.approx(np.mean(after), rel=1e-5)
    assert float(wer["CSADA: sd"]) == pytest.approx(np.std(after, ddof=1), rel=1e-5)
    assert float(wer["CSADA: change (%)"]) == pytest.approx(100 * (np.mean(after) / before - 1), rel=1e-5)
    ruled = 100 * 3 * costs[0, 1] / 400
    assert float(wer["CSADA + rule"]) == pytest.approx(ruled, rel=1e-5)
    assert wer["AP"] == "" and wer["SOSR: sd"] == ""
    accuracy = rows["Accuracy (%)", "ours"]
    assert (accuracy["Baseline"], accuracy["CSADA"], accuracy["CSADA: change (points)"]) == ("96.5", "97.75", "1.25")
    top = [key for key in rows if key[0].startswith("Top 1 cost pair")]
    y, z = np.unravel_index(costs.argmax(), costs.shape)
    assert top[0][0].startswith(f"Top 1 cost pair, {CLASSES[y]} → {CLASSES[z]} ({costs[y, z]:.3g})")


def test_the_papers_figures_stand_beside_ours_with_their_own_change(tmp_path):
    render(comparison(), tmp_path)
    theirs = cells(tmp_path / "table-cifar10-fast.csv")["WER (%)", "paper"]
    assert (theirs["Baseline"], theirs["CSADA"], theirs["CSADA: sd"]) == ("5.49", "4.2", "0.03")
    assert float(theirs["CSADA: change (%)"]) == pytest.approx(100 * (4.20 - 5.49) / 5.49, rel=1e-5)
    text = (tmp_path / "table-cifar10-fast.md").read_text()
    assert "4.20 (0.03), −23.5 %" in text and "| – | – |" in text
    assert "5.07 (2.06), $-$7.7 \\%" in (tmp_path / "table-cifar10-fast.tex").read_text()


def test_notes_name_what_is_partial_and_both_definitions_of_the_cost(tmp_path):
    render(comparison(), tmp_path)
    text = (tmp_path / "table-cifar10-fast.md").read_text()
    assert "CIFAR-10, resnet34, 400 test samples, scale fast" in text
    assert "2 replications from 1 baseline (sosr has 1)" in text
    costs = CostMatrix.pareto(4, seed=0).values
    assert (
        f"Baseline {(10 * costs[0, 1] + 4 * costs[1, 0]) / 100:.2f}, CSADA" in text
    )  # the sum of row-normalised rates


def test_every_matrix_counts_once_in_the_mean_over_matrices(tmp_path):
    render(comparison(), tmp_path)
    rows = cells(tmp_path / "table-cifar10-fast-matrices.csv")
    changes = []
    for seed, after in ((0, (5, 4)), (1, (10, 2))):
        costs = CostMatrix.pareto(4, seed=seed).values
        before = 10 * costs[0, 1] + 4 * costs[1, 0]
        changes.append(100 * ((after[0] * costs[0, 1] + after[1] * costs[1, 0]) / before - 1))
        shown = rows["Change of WER (%)", f"ours, pareto seed {seed}"]
        assert float(shown["CSADA"]) == pytest.approx(changes[-1], rel=1e-5)
    mean = rows["Change of WER (%)", "ours, mean (sd) of 2"]
    assert float(mean["CSADA"]) == pytest.approx(np.mean(changes), rel=1e-5)
    assert float(mean["CSADA: sd"]) == pytest.approx(np.std(changes, ddof=1), rel=1e-5)
    assert rows["Change of accuracy (points)", "paper, one matrix"]["CSADA"] == "-0.16"


def pmi(experiment):
    costs = CostMatrix.preset("pmi")
    critical = costs.top_pairs(4)
    before = 50 * np.eye(20, dtype=int)
    for y, z in critical:
        before[y, z] += 2
    before[0, 1] += 3
    after = before.copy()
    after[critical[0]] = 0
    preset = {"kind": "preset", "name": "pmi"}
    runs = [run("csada", preset, before.tolist(), after.tolist(), data="pills", seed=seed) for seed in (0, 1)]
    return record(experiment, runs, costs.classes)


def test_pmi_tables_show_costs_rates_and_numbers_of_errors(tmp_path):
    render(pmi("table-pmi-resnet34"), tmp_path)
    rows = cells(tmp_path / "table-pmi-resnet34-fast.csv")
    total = rows["Total cost", "ours"]
    assert (total["Baseline"], total["CSADA"], total["CSADA: sd"]) == ("79", "59", "0")  # 2 x (10 + 10 + 10 + 8) + 3
    pair = rows["50111-0434 → 00591-0461, error (%)", "ours"]
    assert float(pair["Baseline"]) == pytest.approx(100 * 2 / 52, rel=1e-5) and pair["CSADA: change (%)"] == "-100"
    assert rows["50111-0434 → 00591-0461, error (%)", "paper"]["Baseline"] == "0.5"
    assert "drawn pill bottles" in (tmp_path / "table-pmi-resnet34-fast.md").read_text()

    render(pmi("errors-pmi"), tmp_path)
    lines = (tmp_path / "errors-pmi-fast.md").read_text().splitlines()
    assert any(line.startswith("| 68382-0227 → 53489-0156 | 8 | ours | 2.0 | 2.0 (0.0), +0.0 % |") for line in lines)
    assert any(line.startswith("| Non-critical pairs | 1 | ours | 3.0 | 3.0 (0.0)") for line in lines)
    assert any(line.startswith("|  | 1 | paper | 8.0 | 8.0 (1.0), +0.0 % | 11.0 (2.3), +37.5 % |") for line in lines)


def test_pmi_costs_follow_the_names_not_the_order(tmp_path):
    shuffled = pmi("table-pmi-resnet9")
    order = np.random.default_rng(0).permutation(20)
    shuffled["classes"] = [shuffled["classes"][i] for i in order]
    for each in shuffled["runs"]:
        for part in (each["result"], each["result"]["baseline"]):
            part["test"] = np.array(part["test"])[np.ix_(order, order)].tolist()
    render(shuffled, tmp_path)
    assert cells(tmp_path / "table-pmi-resnet9-fast.csv")["Total cost", "ours"]["Baseline"] == "79"


def failure():
    """Three of the twelve pairs by both methods, a fourth by CSADA alone; 0 -> 2 has no error in the baseline."""
    before = counts(y0z1=10, y1z0=4)
    runs = []
    for (y, z), penalty, csada in (((0, 1), 10, 2), ((1, 0), 3, 1), ((0, 2), 0, 0)):
        pair = {"kind": "pair", "truth": y, "predicted": z}
        for method, left in (("penalty", penalty), ("csada", csada)):
            after = np.array(before)
            after[y, y] += after[y, z] - left
            after[y, z] = left
            runs.append(run(method, pair, before, after.tolist(), baseline_rule=counts(y1z0=4)))
    lone = {"kind": "pair", "truth": 3, "predicted": 0}
    return record("failure-cifar10", [*runs, run("csada", lone, before, before)])


def test_failure_summary_says_where_methods_started_from_different_baselines(tmp_path):
    def note(content):
        render(content, tmp_path)
        text = (tmp_path / "failure-cifar10-fast.md").read_text()
        return next(line for line in text.splitlines() if "trained baseline" in line)

    assert note(failure()).endswith("From 1 trained baseline.")
    content = failure()
    next(r for r in content["runs"] if r["config"]["method"] == "penalty")["config"]["baseline"] = "b1"
    assert "From 2 trained baselines; for 1 pair each method had its own, and Baseline is their mean." in note(content)


def test_failure_summary_is_over_the_pairs_that_every_method_has(tmp_path):
    render(failure(), tmp_path)
    text = (tmp_path / "failure-cifar10-fast.md").read_text()
    assert "3 of 12 pairs" in text and "2 with baseline errors" in text
    lines = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in text.splitlines()[4:9]}
    assert lines["Baseline"] == ["4.667", "7.000", "–"]  # 10, 4 and 0 %
    assert lines["Penalty"] == ["4.333, −7.1 %", "6.500, −7.1 %", "+0.08"]  # 10, 3, 0; one error less in 400, by pair
    assert lines["CSADA"] == ["1.000, −78.6 %", "1.500, −78.6 %", "+0.92"]  # 8, 3 and 0 errors less
    assert lines["Baseline + rule"] == ["1.333, −71.4 %", "2.000, −71.4 %", "+2.50"]


def test_heat_maps_print_each_pairs_own_error_and_what_was_not_run(tmp_path):
    render(failure(), tmp_path)
    words = svg_words(tmp_path / "failure-cifar10-fast.svg")
    assert "Penalty: 3 of 12 pairs" in words and "CSADA: 4 of 12 pairs" in words and "Baseline" in words
    assert words.count("10.0") == 2 and words.count("2.0") == 1 and words.count("4.0") == 1  # baseline twice as penalty
    assert words.count("0") >= 10 + 1 + 2  # errors that were measured to be none; the unmeasured have no number
    assert words.count("<script>") == words.count("a_b&c") == 3 + 1  # names as they are, across and once down
    assert any("hatched: not run" in word for word in words)
    assert (tmp_path / "failure-cifar10-fast.png").read_bytes().startswith(b"\x89PNG")


def test_a_complete_sweep_is_not_called_partial(tmp_path):
    pairs = [{"kind": "pair", "truth": y, "predicted": 1 - y} for y in (0, 1)]
    names = ["$a$", "b"]
    two = counts(names, y0z1=10)
    render(record("failure-mnist", [run(m, p, two, two) for m in ("penalty", "csada") for p in pairs], names), tmp_path)
    words = svg_words(tmp_path / "failure-mnist-fast.svg")
    assert "CSADA: 2 of 2 pairs" in words and "$a$" in words and not any("hatched" in word for word in words)


def sweep():
    before = counts(y0z1=10)
    runs = [
        run(
            "csada", PARETO, before, counts(y0z1=left), baseline_rule=counts(y0z1=5), seed=s, options={"weight": weight}
        )
        for weight, lefts in ((0.0, (10, 10)), (2.0, (4, 6)), (50.0, (12, 14)))
        for s, left in enumerate(lefts)
    ]
    return record("lambda-cifar10", runs)


def test_cost_against_lambda(tmp_path):
    render(sweep(), tmp_path)
    cost = CostMatrix.pareto(4, seed=0).values[0, 1] / 4  # of one error in a hundred of a class, in percent
    rows = cells(tmp_path / "lambda-cifar10-fast.csv")
    assert list(rows) == [("pareto seed 0", label) for label in ("baseline", "0", "2", "50")]
    assert float(rows["pareto seed 0", "2"]["WER (%)"]) == pytest.approx(5 * cost, rel=1e-5)
    assert float(rows["pareto seed 0", "50"]["WER (%): change (%)"]) == pytest.approx(30)
    assert float(rows["pareto seed 0", "baseline"]["WER + rule (%)"]) == pytest.approx(5 * cost, rel=1e-5)
    words = svg_words(tmp_path / "lambda-cifar10-fast.svg")
    assert {"lambda", "test WER (%)", "baseline", "baseline + decision rule", "one replication", "0", "2", "50"} <= {
        *words
    }
    assert "first falls and then rises" in (tmp_path / "lambda-cifar10-fast.md").read_text()


def test_convergence_by_epoch(tmp_path):
    before, after = counts(y0z1=10), counts(y0z1=4)
    runs = [
        run(
            "csada",
            PARETO,
            before,
            after,
            seed=s,
            history=[{"epoch": e, "loss": 1 / e + s, "test_wer": 0.1 / e} for e in (1, 2)],
        )
        for s in range(3)
    ]
    render(record("convergence-cifar10", runs), tmp_path)
    with (tmp_path / "convergence-cifar10-fast.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["training loss"]) for row in rows[1:]] == [2.0, 1.5] and rows[1]["training loss: sd"] == "1"
    cost = CostMatrix.pareto(4, seed=0).values[0, 1]
    assert float(rows[0]["test WER (%)"]) == pytest.approx(10 * cost / 4, rel=1e-5) and rows[2]["test WER (%)"] == "5"
    words = svg_words(tmp_path / "convergence-cifar10-fast.svg")
    assert "training loss" in words and any("90 % prediction interval of 3 replications" in word for word in words)


def test_toy_counts_green_labelled_as_blue(tmp_path):
    classes = ["red", "green", "blue"]
    pair = {"kind": "pair", "truth": 1, "predicted": 2}
    runs = [
        run("csada", pair, counts(classes, y1z2=k), counts(classes, y2z1=3), seed=s, kind="toy", spread=2.0)
        for s, k in enumerate((2, 4))
    ]
    render(record("toy", runs, classes), tmp_path)
    text = (tmp_path / "toy-fast.md").read_text()
    assert (
        "| Critical errors per data set | ours, spread 2, 2 seeds | 3.00 (1.41) | 0.00 (0.00), −100.0 % "
        "| 3.00 (1.41), +0.0 % | 0.00 (0.00), −100.0 % |" in text
    )
    assert "| Accuracy (%) | ours, spread 2, 2 seeds | 99.00 (0.47) | 99.00 (0.00), +0.00 points |" in text
    assert "| paper, one data set | multiple | 0 |" in text


def test_names_become_neither_html_nor_columns_nor_commands():
    table = Table(
        "t", "costs of <script>", ("a|b", "x"), (("a_b&c", Value(-1.5, 0.25)), ("[x](y)", None)), ("100 % {}",)
    )
    text = markdown(table)
    assert "costs of &lt;script&gt;" in text and "<script" not in text
    assert "| a\\|b | x |" in text and "| a\\_b&amp;c | −1.50 (0.25) |" in text and "\\[x\\](y)" in text
    printed = latex(table)
    assert r"\caption{costs of \textless{}script\textgreater{}}" in printed
    assert r"a\_b\&c & $-$1.50 (0.25) \\" in printed and r"100 \% \{\}" in printed
    assert list(csv.reader(comma_separated(table).splitlines())) == [
        ["a|b", "x", "x: sd"],
        ["a_b&c", "-1.5", "0.25"],
        ["[x](y)", "", ""],
    ]


def test_settings_are_never_averaged_together(tmp_path):
    mixed = comparison()
    mixed["runs"][0]["config"]["options"] = {"weight": 10.0}
    with pytest.raises(InputError, match="csada with different options"):
        render(mixed, tmp_path)


def test_bad_records_are_refused_by_name():
    with pytest.raises(InputError, match="unknown experiment 'tabel'"):
        parse(record("tabel", []))
    with pytest.raises(InputError, match="table-mnist holds no finished run"):
        parse(record("table-mnist", []))
    lacking = comparison()
    del lacking["runs"][0]["result"]["rule"]
    with pytest.raises(InputError, match=r"runs\[0\]: result: rule is missing"):
        parse(lacking)
    with pytest.raises(InputError, match="cannot name a record's files"):
        parse(comparison() | {"scale": "../../fast"})
    with pytest.raises(InputError, match=r"shape \(4, 4\), but there are 3 classes"):
        parse(comparison() | {"classes": ["a", "b", "c"]})


def test_only_records_of_the_papers_experiments_are_read(tmp_path):
    with pytest.raises(InputError, match="no records of the paper's experiments"):
        read_records(tmp_path)
    for name, content in {
        "baseline-mnist": {"experiment": "baseline", "runs": []},
        "tabular": {"experiment": "tabular", "runs": []},
        "list": [1, 2],
        "table-cifar10-fast-pmi": comparison(),
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert [found.name for found in read_records(tmp_path)] == ["table-cifar10-fast-pmi"]
    (tmp_path / "toy-fast.json").write_text('{"experiment": "to')
    with pytest.raises(InputError, match=r"toy-fast\.json is damaged"):
        read_records(tmp_path)


def test_the_commands_write_from_records_without_torch(tmp_path):
    for content in (comparison(), failure()):
        (tmp_path / f"{content['experiment']}-fast.json").write_text(json.dumps(content))
    code = """if True:
        import sys
        from csada.cli import app
        for command in ("tables", "figures"):
            app([command, "--results", sys.argv[1], "--out", sys.argv[1] + "/" + command], standalone_mode=False)
        assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "failure-cifar10-fast.png",
        "failure-cifar10-fast.svg",
    ]
    assert len(list((tmp_path / "tables").iterdir())) == 9
    assert done.stdout.count("wrote ") == 11


def test_the_same_record_gives_the_same_files(tmp_path):
    first, second = render(sweep(), tmp_path / "a"), render(sweep(), tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_committed_tables_and_figures_are_what_their_records_give(tmp_path):
    records = read_records(RESULTS)
    written = [path for record in records for path in write_tables(record, tmp_path)]
    assert {path.name for path in RESULTS.glob("*.tex") if not path.name.startswith("study-")} == {
        path.name for path in written if path.suffix == ".tex"
    }
    assert [path.name for path in written if path.read_bytes() != (RESULTS / path.name).read_bytes()] == []
    drawn = {record.experiment for record in records if (RESULTS / f"{record.name}.svg").exists()}
    assert drawn == {record.experiment for record in records} & FIGURES.keys()
    record = next(record for record in records if record.experiment == "lambda-cifar10")
    picture = next(path for path in write_figures(record, tmp_path) if path.suffix == ".svg")
    committed = RESULTS / picture.name
    assert svg_words(picture) == svg_words(committed)
    if matplotlib.__version__ in committed.read_text():  # another version may draw the same otherwise
        assert picture.read_bytes() == committed.read_bytes()


def test_the_papers_own_figures_agree_with_each_other():
    """Typed right: the paper's total costs are its numbers of errors times the expert costs."""
    prices = [10, 10, 10, 8, 1]
    for column in range(4):
        total = sum(price * row[column][0] for price, row in zip(prices, published.TABLES["errors-pmi"], strict=True))
        assert total == pytest.approx(published.TABLES["table-pmi-resnet34"][0][column][0], abs=0.05)
    assert len(EXPERIMENTS) == 10 and TABLES.keys() == {*EXPERIMENTS}


def svg_words(path):
    return ["".join(node.itertext()) for node in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]
