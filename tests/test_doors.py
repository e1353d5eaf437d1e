"""Files, folders and names of strangers, continued: locks, formula cells, bounds, and what is on the disk when."""

import csv
import ctypes
import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from browser import chromium
from PIL import Image
from program import program
from samples import announced, write_folder
from test_cli import csada as fresh
from test_cli import inside, refused
from typer.main import get_command

import csada
from csada import CostMatrix, data
from csada.cli import app
from csada.data import folder, load
from csada.data.scores import read as read_scores
from csada.decisions.acceptance import verdicts
from csada.decisions.limits import AtLeast, Limits, Pair
from csada.errors import InputError
from csada.folders import LOCK, replaced
from csada.logbook import key_of
from csada.paper.tables import Table, comma_separated
from csada.reading import parse_json, read_toml
from csada.report.difference import difference_page
from csada.rows import as_written
from csada.sample import Sample
from csada.workflow.late import Late

pytestmark = pytest.mark.filterwarnings("ignore:the true class scores")


def limited(code, *words, seconds=30):
    """Python in a process of its own, which may compute for so long."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # noqa: E731
    words = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, preexec_fn=limit, timeout=120)


# -- locks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["lock", ".csada"])
def test_a_pipe_or_a_link_in_place_of_a_lock_is_refused(tmp_path, where):
    """A pipe was waited for; through a link a file was made outside of the folder."""
    (model := tmp_path / "model").mkdir()
    (model / "model.json").write_text("{}")
    (outside := tmp_path / "outside").mkdir()
    if where == "lock":
        (model / ".csada").mkdir()
        (model / LOCK).symlink_to(outside / "made")
    else:
        (model / ".csada").symlink_to(outside)
    for command in ("train digits --out {0}", "compare digits --costs uniform --out {0}"):
        assert "/lock is a link, a pipe or something else" in refused(*command.format(model).split())
    assert os.listdir(outside) == []
    if where == "lock":
        (model / LOCK).unlink()
        os.mkfifo(model / LOCK)
        code = "import sys; from pathlib import Path; from csada.folders import locked; locked(Path(sys.argv[1])).__enter__()"
        assert "/lock is a link, a pipe or something else" in limited(code, model).stderr


@pytest.mark.parametrize("name", ["model.json", "arrays.safetensors"])
@pytest.mark.parametrize("command", ["report {}", "predict {} new.csv", "evaluate {} table.csv", "export {}"])
def test_an_endless_device_in_place_of_a_models_file_is_refused_in_one_line(
    named, tmp_path, monkeypatch, name, command
):
    monkeypatch.chdir(named)
    shutil.copytree("model", model := tmp_path / "model")
    (model / name).unlink()
    (model / name).symlink_to("/dev/zero")
    done = inside(*command.format(model).split())
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"{model / name} cannot be read: not a regular file" in done.stderr


# -- on the disk -------------------------------------------------------------------------------------------


@pytest.fixture
def order(monkeypatch):
    """What was waited for and renamed, in order."""
    done, moved = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.readlink(f"/proc/self/fd/{number}")))
    monkeypatch.setattr(os, "sync", lambda: done.append("all"))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("named"), moved(a, b)))
    exchange = csada.folders.exchange
    monkeypatch.setattr(csada.folders, "exchange", lambda a, b: (done.append("named"), exchange(a, b)))
    return done


def test_all_of_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path, order):
    out = tmp_path / "model"
    for _ in range(2):
        order.clear()
        with replaced(out) as new:
            (new / "model.json").write_text("{}")
        at = order.index("named")
        before = {Path(each).name for each in order[:at]}
        assert "model.json" in before and order[at + 1 :] == [str(tmp_path)]
        if (out / "notes").exists():
            assert {"mine.txt", "notes"} <= before
            continue
        (out / "notes").mkdir()
        (out / "notes" / "mine.txt").write_text("of somebody else")
        (out / "notes" / "link").symlink_to("nowhere")


def test_saved_images_are_on_the_disk_before_the_folder_has_its_name(tmp_path, order, own_folders, monkeypatch):
    write_folder(tmp_path / "photos", {"cat": 9, "dog": 9}, size=(16, 16))
    splits = load(tmp_path / "photos", size=8)
    for many, waited in ((100, 18), (5, 6)):  # of many files the whole disk is waited for
        monkeypatch.setattr(csada.files, "MANY", many)
        order.clear()
        folder.save(splits, tmp_path / f"saved {many}")
        at = order.index("named")
        assert len({each for each in order[:at] if each.endswith(".png") or each == "all"}) <= waited
        assert ("all" in order[:at]) == (many == 5) and order[at + 1 :] == [str(tmp_path)]
        assert many == 5 or sum(each.endswith(".png") for each in order[:at]) == 18


# -- numbers -----------------------------------------------------------------------------------------------


def test_a_number_with_an_underscore_is_no_number(tmp_path):
    """Python and NumPy read 1_0 as 10, tables refused it."""
    (tmp_path / "s.csv").write_text("id,label,z:a,z:b\n1,,1_0,2\n")
    with pytest.raises(InputError, match="line 2, column 'z:a': '1_0' is not a finite number"):
        read_scores(tmp_path / "s.csv")
    for text in ("truth,predicted,cost\n*,*,1_0\na,b,2\n", "x,a,b\na,0,1_0\nb,1,0\n"):
        (tmp_path / "c.csv").write_text(text)
        with pytest.raises(InputError, match="'1_0', no number"):
            CostMatrix.from_csv(tmp_path / "c.csv")


def test_costs_in_another_order_are_put_in_order():
    """They were refused after the training, with nothing after the colon."""
    digits = data.load("digits", scale=0.1)
    given = csada.Classifier.of(
        csada.models.create("mlp", 10, features=64, hidden=[4]),
        digits,
        architecture="mlp",
        arguments={"features": 64, "hidden": [4]},
    )
    costs = CostMatrix(CostMatrix.pareto(10).values, digits.classes)
    backwards = costs.ordered(digits.classes[::-1])
    assert csada.improve(given, digits, backwards, options={"epochs": 0}).costs == costs
    assert csada.auto(given, digits, backwards, epochs=0).costs == costs
    with pytest.raises(InputError, match="the costs name other classes: the same in another order"):
        replace(given, costs=backwards)


# -- bounds ------------------------------------------------------------------------------------------------


def test_the_table_of_bounds_is_that_of_the_code():
    text = (Path(__file__).parents[1] / "docs" / "bounds.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+)( [MG]iB)? \|", text, re.MULTILINE)
    units = {"": 1, " MiB": 2**20, " GiB": 2**30}
    assert {name: int(number.replace(",", "")) * units[unit] for name, number, unit in rows} == csada.bounds.BOUNDS


def test_what_is_nested_too_deep_is_refused(tmp_path):
    """Values of 900 levels passed, and whoever showed or walked them had no stack left."""
    assert parse_json("[" * 100 + "]" * 100, "x") and parse_json("1", "x") == 1
    for text in ("[" * 101 + "]" * 101, '{"a":' * 500 + "1" + "}" * 500):
        with pytest.raises(InputError, match=r"x has more than 100 levels .* .csada --bound levels=1000 allows more"):
            parse_json(text, "x")
    for text in ("a = " + "[" * 101 + "]" * 101, "a" + ".a" * 150 + " = 1", '["a"' + ' . "a"' * 150 + "]"):
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(InputError, match=r"x\.toml has more than 100 levels"):
            read_toml(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_text("a = [" + "0.5, " * 300 + "]\nb.c.'d.e' = '1.2.3'\n")
    assert len(read_toml(tmp_path / "x.toml")["a"]) == 300


def test_a_key_of_a_hundred_thousand_parts_takes_no_time(tmp_path):
    """Two minutes: the time of Python's reader has the square of the parts."""
    (tmp_path / "x.toml").write_text("a" + ".a" * 100_000 + " = 1")
    done = limited("import sys; from csada.reading import read_toml; read_toml(sys.argv[1])", tmp_path / "x.toml")
    assert "more than 100 levels" in done.stderr


def test_thousands_of_comparisons_take_seconds():
    """Not done after a minute."""
    code = """
from csada.decisions.elicit import Compared, fit_scale
print(fit_scale([1.0] * 3500, [Compared(i, (i + 1) % 3500, 1.0) for i in range(3500)], {}).costs.sum())
"""
    assert float(limited(code).stdout) == pytest.approx(3500)


def test_limits_have_a_bound(monkeypatch):
    monkeypatch.setenv("CSADA_BOUNDS", "limits=5")
    with pytest.raises(InputError, match=r"6 limits; at most 5 are read .csada --bound limits=6 allows more"):
        Limits(tuple(Pair(f"a{i}", "b", 0.5) for i in range(6)))
    two = Limits(recall=(AtLeast("a", 0.5), AtLeast("b", 0.5))).resolved(["a", "b"])
    truth, groups = np.array([0, 1, 0, 1]), {"x": np.array([True, True, False, False]), "y": np.ones(4, bool)}
    with pytest.raises(InputError, match="2 limits on 3 sets of samples are 6; at most 5"):
        verdicts(two, truth, truth, None, groups)
    assert len(verdicts(two, truth, truth, None, {})) == 2


def test_arrays_of_scores_have_a_bound_that_can_be_raised(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "s.npz", id=["1"], label=[""], classes=["a", "b"], p=[[0.5, 0.5]])
    monkeypatch.setenv("CSADA_BOUNDS", "scores=100")
    with pytest.raises(InputError, match=r"holds arrays of [\d,]+ bytes; at most 100 are read .csada --bound scores="):
        read_scores(tmp_path / "s.npz")
    monkeypatch.delenv("CSADA_BOUNDS")
    assert len(read_scores(tmp_path / "s.npz")) == 1


def test_a_model_of_enormous_images_is_refused():
    """It took 5 GB per image."""
    with pytest.raises(InputError, match="3 x 20000 x 20000 uint8; at most 178,956,970 are read"):
        Sample((3, 20_000, 20_000), "uint8")
    assert Sample((3, 1000, 1000), "uint8")


# -- images ------------------------------------------------------------------------------------------------


def test_large_images_are_decoded_one_after_the_other(tmp_path):
    """Each takes 16 bytes per pixel in between: as many at once as there are cores took gigabytes."""
    Image.new("RGBA", (4200, 4200), (9, 9, 9, 9)).save(tmp_path / "a.png", compress_level=1)
    code = r"""
import re, sys
from concurrent.futures import ThreadPoolExecutor
from csada.pixels import square
content = open(sys.argv[1], "rb").read()
with ThreadPoolExecutor(6) as pool:
    list(pool.map(lambda _: square(content, 8), range(6)))
print(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])  # its own; ru_maxrss begins with its parent's
"""
    assert int(limited(code, tmp_path / "a.png").stdout) < 1_000_000  # kilobytes


def test_too_little_memory_for_the_moment_is_not_remembered(tmp_path, own_folders):
    """The cache had the image as a broken one for ever, and a picture whose notes took too much lay on its side."""
    write_folder(tmp_path / "photos", {"cat": 8, "dog": 8}, size=(16, 16))
    Image.new("RGBA", (6000, 6000)).save(tmp_path / "photos" / "cat" / "large.png", compress_level=1)
    code = """
import resource, sys
from csada.data import load
from csada.errors import RunError
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 3 * 10**8, resource.RLIM_INFINITY))
try:
    load(sys.argv[1], size=8)
except RunError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(sum(map(len, load(sys.argv[1], size=8).parts.values())))
"""
    done = limited(code, tmp_path / "photos", seconds=120)
    assert "cat/large.png takes more memory to decode than there is" in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith("17\n")


def test_pillow_adds_no_lines_of_its_own(tmp_path):
    write_folder(tmp_path / "photos", {"cat": 8, "dog": 8}, size=(16, 16))
    (tmp_path / "photos" / "cat" / "large.png").write_bytes(announced(10_000, 10_000))
    own = os.environ | {"CSADA_CACHE": str(tmp_path / "cache")}
    done = program("data", "show", tmp_path / "photos", "--skip-bad", env=own)
    assert done.returncode == 0 and "Bomb" not in done.stderr and "could be" not in done.stderr


# -- names -------------------------------------------------------------------------------------------------


def test_a_name_adds_no_line_and_turns_none(tmp_path):
    names = ["fine\ncsada: all is well", "\u202eslaed"]
    costs = CostMatrix.from_pairs(names, {(names[0], names[1]): 5})
    costs.to_csv(tmp_path / "c.csv")
    done = inside("costs", "check", tmp_path / "c.csv")
    assert done.returncode == 0 and "fine\ufffdcsada: all is well labelled as \ufffdslaed costs 5" in done.stdout
    assert "\u202e" not in done.stdout and not [line for line in done.stdout.splitlines() if line.startswith("csada:")]
    for name in names:
        write_folder(tmp_path / "photos", {name: 3}, size=(8, 8))
        assert "has a name that is no plain text" in refused("data", "show", tmp_path / "photos")
        os.rename(tmp_path / "photos", tmp_path / f"photos {names.index(name)}")


def test_of_thousands_of_pairs_on_which_experts_differ_some_are_told(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        costs = CostMatrix.pareto(40, shape=0.3, seed=seed)
        costs.to_csv(tmp_path / f"{name}.csv")
    done = inside("costs", "merge", tmp_path / "a.csv", tmp_path / "b.csv", "--out", tmp_path / "c.csv")
    told = [line for line in done.stdout.splitlines() if " labelled as " in line]
    assert len(told) == 10 and "more; --json has all of them" in done.stdout.splitlines()[-1]


# -- cells -------------------------------------------------------------------------------------------------

NAMES = ("=1+1", "@sum")


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A classifier of classes that a spreadsheet would compute, and all that is written with it."""
    root = tmp_path_factory.mktemp("named")
    draw = np.random.default_rng(0)
    rows = [f"{draw.normal(3 * (i % 2)):.3f},{draw.normal():.3f},{NAMES[i % 2]}" for i in range(400)]
    (root / "table.csv").write_text("\n".join(["x,y,kind", *rows]))
    (root / "new.csv").write_text("\n".join(["x,y", *(row.rpartition(",")[0] for row in rows)]))
    table = load(root / "table.csv")
    arguments = {"features": 2, "hidden": [4]}
    network = csada.models.create("mlp", 2, **arguments)
    given = csada.Classifier.of(network, table, architecture="mlp", arguments=arguments)
    costs = CostMatrix.from_pairs(table.classes, {NAMES: 3})
    csada.improve(given, table, costs, options={"epochs": 0}).save(root / "model")
    costs.to_csv(root / "costs.csv")
    return root


WRITERS = {  # a command, and the file that it writes
    "predict": ("predict model new.csv --all --out {}", "d.csv"),
    "evaluate": ("evaluate model table.csv --seen keep --scores {}", "s.csv"),
    "decide": ("decide scores.csv --costs costs.csv --out {}", "d.csv"),
    "suggest-priors": ("monitor model log.jsonl --every 400 --no-change --suggest-priors {}", "p.csv"),
    "costs new": ("costs new table.csv --out {}", "c.csv"),
    "costs new --matrix": ("costs new table.csv --matrix --out {}", "c.csv"),
    "costs merge": ("costs merge costs.csv costs.csv --out {}", "c.csv"),
    "tables": (None, "t.csv"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_cell_of_any_table_is_a_formula(named, tmp_path, monkeypatch, name):
    monkeypatch.chdir(named)
    command, file = WRITERS[name]
    if command is None:
        (tmp_path / file).write_text(comma_separated(Table("t", "t", ["=h", "b"], [["@x", "=1"]])))
    else:
        if name == "decide":
            rows = [f"=id{i},{NAMES[i % 2]},{0.9 - 0.8 * (i % 2)},{0.1 + 0.8 * (i % 2)}" for i in range(300)]
            Path("scores.csv").write_text("\n".join(["id,label,p:=1+1,p:@sum", *rows]))
        if name == "suggest-priors":
            Path("log.jsonl").unlink(missing_ok=True)
            assert (
                inside("predict", "model", "new.csv", "--out", tmp_path / "x.csv", "--log", "log.jsonl").returncode == 0
            )
        done = inside(*command.format(tmp_path / file).split())
        assert done.returncode in (0, 1), done.stderr
    with (tmp_path / file).open(newline="") as opened:
        cells = [cell for row in csv.reader(opened) for cell in row]
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "\t", "\r")], cells
    assert [cell for cell in cells if cell.startswith(("'=", "'@"))] or name == "costs new", cells


def test_what_is_written_so_is_read_as_it_was(named, tmp_path, monkeypatch):
    monkeypatch.chdir(named)
    done = inside("evaluate", "model", "table.csv", "--seen", "keep", "--scores", tmp_path / "s.csv")
    assert done.returncode == 0, done.stderr
    table = read_scores(tmp_path / "s.csv")
    assert set(table.classes) == set(NAMES) and min(table.labels) >= 0
    assert inside("decide", tmp_path / "s.csv", "--rule", "model", "--out", tmp_path / "d.csv").returncode in (0, 2)
    (tmp_path / "late.csv").write_text("id,label\n'=7,'=1+1\n-8,'@sum\n")
    assert Late.read(tmp_path / "late.csv", NAMES).labels == ({}, {key_of("=7"): 0, key_of("-8"): 1})
    assert as_written("'=1+1") == NAMES[0]


# -- pages -------------------------------------------------------------------------------------------------


def test_a_script_that_gets_into_a_page_does_not_run(named, tmp_path, monkeypatch):
    """Whatever is missed when names are escaped: the page's own policy forbids it."""
    monkeypatch.chdir(named)
    log, monitored = tmp_path / "log.jsonl", tmp_path / "monitor.html"
    assert inside("predict", "model", "new.csv", "--out", tmp_path / "x.csv", "--log", log).returncode == 0
    assert inside("monitor", "model", log, "--every", "400", "--no-change", "--out", monitored).returncode in (0, 1)
    (tmp_path / "diff.html").write_text(difference_page("a", "b", [("x", "y", 1)], [("cost", "1", "2")], []))
    assert inside("report", "model", "--out", tmp_path / "report.html").returncode == 0
    assert inside("review", "model", "table.csv", "--out", tmp_path / "review.html").returncode == 0
    own = {"report": ".theme:visible", "review": "#map td"}  # what a page's own script shows
    strange = '<script>document.title = "ran"</script><img src="data:,x" onerror="document.title = \'ran\'"></body>'
    with chromium() as browser:
        for name in ("monitor", "diff", *own):
            page = (tmp_path / f"{name}.html").read_text().replace("</body>", strange)
            without = re.sub("<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page)
            titles, works = [], []
            for text in (page, without):  # without its policy it would run
                (tmp_path / "page.html").write_text(text)
                tab = browser.new_page()
                tab.goto((tmp_path / "page.html").as_uri())
                tab.wait_for_load_state("load")
                titles.append(tab.title())
                works.append(name not in own or tab.locator(own[name]).count() > 0)
            assert titles[0] != "ran" == titles[1] and all(works), name


# -- size


def test_the_memory_of_every_command_is_on_record_or_why_it_is_not(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    memory, group = pytest.importorskip("memory"), get_command(app)

    def names(group, before=""):
        for name, command in group.commands.items():
            yield from names(command, f"{name} ") if hasattr(command, "commands") else [before + name]

    measured = {each.words for each in memory.measurements()}
    assert len({each.name for each in memory.measurements()}) == len(memory.measurements())
    left = {name for name in names(group) if not any(words.startswith(f"{name} ") for words in measured)}
    assert left == set(memory.NOT_MEASURED)


# -- disks and rights --------------------------------------------------------------------------------------


def test_a_full_disk_while_a_method_trains_is_one_line(named, tmp_path):
    """A file may have no more than 4 kB: the same error as on a full disk."""
    words = ["fit", "model", "table.csv", "--costs", "costs.csv", "--method", "csada", "--epochs", "1"]
    more = ["--seen", "keep", "--out", str(tmp_path / "fitted")]
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))
    done = program(*words, *more, cwd=named, before=full)
    assert done.returncode == 1 and os.strerror(errno.EFBIG) in done.stderr.splitlines()[-1], done.stderr
    assert "Traceback" not in done.stderr and not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("command", ["data show digits --figure {}/f.png", "data save digits {}/saved --scale 0.02"])
def test_a_folder_of_others_is_not_written_to(tmp_path, command):
    """Root, whom no folder refuses, gives up the capability for that (CAP_DAC_OVERRIDE)."""
    (place := tmp_path / "place").mkdir()
    place.chmod(0o555)
    drop = lambda: ctypes.CDLL(None).prctl(24, 1)  # noqa: E731 - PR_CAPBSET_DROP
    done = fresh(*command.format(place).split(), preexec_fn=drop)
    assert done.returncode in (1, 2) and "Permission denied" in done.stderr.splitlines()[-1], done.stderr
    assert "Traceback" not in done.stderr and os.listdir(place) == []
