"""`csada costs new` and `csada costs check` as a pharmacist uses them."""

import csv
import json

import pytest
from test_cli import inside as csada
from test_cli import refused

from csada import CostMatrix
from csada.data import counts

DRUGS = ["glipizide", "trazodone, 100 mg", 'ranitidine "white"', "#4 primidone"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Class folders, 10 files each but 200 of the first; the files are no images: whoever decodes them fails."""
    root = tmp_path_factory.mktemp("project") / "photos"
    for name in DRUGS:
        (root / name).mkdir(parents=True)
        for i in range(200 if name == DRUGS[0] else 10):
            (root / name / f"{i}.jpg").write_text(f"{name} {i}")
    return root


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", [[], ["--matrix"]])
def test_a_template_holds_the_datas_names_and_can_be_filled_in(photos, tmp_path, form):
    file = tmp_path / "new" / "costs.csv"
    made = csada("costs", "new", photos, "--out", file, "--default", "2", *form)
    assert made.returncode == 0, made.stderr
    costs = CostMatrix.from_csv(file)
    assert sorted(costs.classes) == sorted(DRUGS) and set(costs.values[costs.values > 0]) == {2.0}
    if form:
        return
    with file.open("a", newline="") as out:
        csv.writer(out).writerow([DRUGS[1], DRUGS[0], 10, "lowers the sugar of a patient who needs sleep"])
    assert CostMatrix.from_csv(file)[DRUGS[1], DRUGS[0]] == 10


def test_costs_that_are_there_are_not_overwritten_by_accident(photos, tmp_path):
    file = written(tmp_path / "costs.csv", "filled in")
    assert "--force overwrites it" in refused("costs", "new", photos, "--out", file)
    assert file.read_text() == "filled in"
    assert csada("costs", "new", photos, "--out", file, "--force").returncode == 0
    assert sorted(CostMatrix.from_csv(file).classes) == sorted(DRUGS)


def test_check_says_in_words_what_would_be_paid(photos, tmp_path):
    file = tmp_path / "costs.csv"
    CostMatrix.from_pairs(DRUGS, {(1, 0): 10, (2, 0): 8}).to_csv(file, as_list=True)
    run = csada("costs", "check", file, "--data", photos)
    assert run.returncode == 0 and run.stderr == ""
    assert "trazodone, 100 mg labelled as glipizide costs 10" in run.stdout
    assert (
        "10 is paid when trazodone, 100 mg is labelled as glipizide, 1 when glipizide is labelled as traz" in run.stdout
    )
    assert "2 of 6 pairs of classes cost more one way" in run.stdout
    n = counts(photos)["test"][DRUGS[1]]
    assert f"trazodone, 100 mg, {n} samples: at most {100 * (1 - 0.05 ** (1 / n)):.1f} % are labelled" in run.stdout


def test_check_finds_what_is_odd(tmp_path):
    lines = "truth,predicted,cost\n*,*,1\n*,a,0\nb,*,0\nc,b,2000\nd,d,0\n"
    found = json.loads(csada("costs", "check", written(tmp_path / "costs.csv", lines), "--json").stdout)
    wide, magnet, free = found["warnings"]
    assert "2,000 times as much" in wide
    assert "mistakes on b are free" in free
    assert "labelling anything as a is free" in magnet
    assert found["costliest"][0] == {"truth": "c", "predicted": "b", "cost": 2000.0}


def test_check_counts_ties_and_knows_when_there_is_nothing_to_do(tmp_path):
    lines = "truth,predicted,cost\n*,*,1\na,*,7\nb,*,7\nc,*,7\n" + "".join(f"{k},{k},0\n" for k in "abcdef")
    ties = csada("costs", "check", written(tmp_path / "ties.csv", lines))
    assert ties.stdout.count("costs 7") == 10 and "and 5 more at 7" in ties.stdout
    even = csada("costs", "check", written(tmp_path / "even.csv", ",a,b\na,0,3\nb,3,0\n"))
    assert even.returncode == 0 and "nothing to do: accuracy is the right measure" in even.stdout
    none = csada("costs", "check", written(tmp_path / "none.csv", ",a,b\na,0,0\nb,0,0\n"))
    assert none.returncode == 0 and "no mistake costs anything" in none.stdout


def test_other_names_than_the_datas_are_named_with_the_renaming(photos, tmp_path):
    names = ["glipizid", *DRUGS[1:3], "aspirin"]
    CostMatrix(CostMatrix.uniform(4).values, names).to_csv(tmp_path / "costs.csv")
    line = refused("costs", "check", tmp_path / "costs.csv", "--data", photos)
    assert "rename 'glipizid' to 'glipizide'" in line and "take out 'aspirin'; add '#4 primidone'" in line


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("# by hand\ntruth,predicted,cost\n*,*,1\na,b,2\nc,bb,3\nbb,a,1\n", ", lines 5, 6, names other"),
        (",a,bb,c\na,0,1,1\nbb,1,0,1\nc,1,1,0\n", ", line 3, names other"),
        (",a,b,c\na,0,1,1\nb,1,0,much\nc,1,1,0\n", ", line 3: cost of calling 'b' 'c' is 'much', no number"),
        (",a,b,c\na,0,1,1\nb,1,0\nc,1,1,0\n", ", line 3: row 'b' has 2 costs, 3 are needed"),
    ],
)
def test_the_line_to_correct_is_named(tmp_path, text, where):
    for name in "abc":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            (tmp_path / "photos" / name / f"{i}.jpg").write_text(f"{name} {i}")
    file = written(tmp_path / "costs.csv", text)
    line = refused("costs", "check", file, "--data", tmp_path / "photos")
    assert f"{file}{where}" in line and ("names" not in where or "'bb'" in line)


def test_images_without_class_folders_are_told_how_to_be_sorted(tmp_path):
    for i in range(3):
        (tmp_path / f"IMG_{i}.jpg").write_text("x")
    line = refused("train", tmp_path, "--out", tmp_path / "m")
    sort = f"put them into one folder per class, as in {tmp_path}/cat/IMG_0.jpg"
    assert f"{tmp_path} holds 3 images but no class folders; {sort}" in line


def test_images_that_cannot_be_decoded_are_left_out_by_a_flag(photos, tmp_path):
    assert "leave them out with --skip-bad" in refused("train", photos, "--out", tmp_path / "m")


def test_a_file_that_cannot_be_used_is_exit_code_2(tmp_path):
    file = written(tmp_path / "costs.csv", ",a,b\na,1,3\nb,3,0\n")
    assert "a correct prediction must cost 0" in refused("costs", "check", file)
    assert "none.csv" in refused("costs", "check", tmp_path / "none.csv")
