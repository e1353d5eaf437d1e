"""What README and documentation show is true: code runs, commands exist, links lead somewhere, and nothing is fetched."""

import csv
import doctest
import functools
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from browser import chromium
from PIL import Image
from typer.main import get_command

import csada
from csada.cli import app
from csada.workflow.project import choose, template

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
ELSEWHERE = {"adding-a-method.md"}  # test_adding_a_method.py runs its code and looks at what comes of it
LIBRARIES = {
    "csada.lightning": ("lightning", "pytorch_lightning"),
    "transformers": ("transformers",),
    "onnxruntime": ("onnxruntime",),
}


def text(page):
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page):
    """[[word, ...], ...]: every line of a shell block, and indented lines that start with csada."""
    shown = text(page)
    lines = [line for block in blocks(shown, "(?:sh|console)") for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"^    (csada .+)$", shown, re.MULTILINE)
    return [words for line in lines if (words := shlex.split(line.removeprefix("$ "), comments=True))]


# -- Python ----------------------------------------------------------------------------------------


def test_the_readmes_code_runs_and_ends_as_it_says(tmp_path, monkeypatch):
    page, namespace = (ROOT / "README.md").read_text(encoding="utf-8"), {}
    (code,) = blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), namespace)
    said = [float(number) for number in re.search(r"falls from ([\d.]+) to ([\d.]+)", page).groups()]
    found = [100 * namespace[name].evaluate(namespace["data"]).mean_cost for name in ("mine", "better")]
    assert found == pytest.approx(said, abs=3)  # in its last digits the training depends on the machine
    assert csada.Classifier.load("model").evidence.chosen == namespace["better"].evidence.chosen != "before"


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning is behind torch
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("page", [p for p in PAGES if p not in ELSEWHERE and "```python\n" in text(p)])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace, missing = {"__name__": "page"}, []
    for code in blocks(text(page), "python"):
        needed = [name for name in LIBRARIES if re.search(rf"^(?:from|import) {name}\b", code, re.MULTILINE)]
        lacking = [name for name in needed if not any(map(importlib.util.find_spec, LIBRARIES[name]))]
        missing += lacking
        if not lacking:
            exec(compile(code, page, "exec"), namespace)
    if missing:
        pytest.skip(f"all other code ran; not installed: {', '.join(missing)}")


@pytest.mark.parametrize(
    "module",
    [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "src").rglob("*.py"))
        if ">>> " in path.read_text(encoding="utf-8")
    ],
)
def test_examples_in_docstrings(module):
    ran = doctest.testmod(importlib.import_module(module))
    assert ran.attempted > 0 and ran.failed == 0


# -- commands --------------------------------------------------------------------------------------


def leaves(group, before=""):
    for name, command in group.commands.items():
        yield from leaves(command, f"{before}{name} ") if hasattr(command, "commands") else [(before + name, command)]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """A program that reads its arguments and its project file as ever, and then does nothing but say what it was told."""
    monkeypatch.chdir(tmp_path)
    group = get_command(app)

    def start(words):
        told = []
        for name, command in leaves(group):
            command.callback = functools.wraps(command.callback)(lambda _name=name, **given: told.append(_name))
        group.main(words, standalone_mode=False)
        return told

    return start


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)])
def test_the_commands_of_a_page_exist_with_their_options(page, started, tmp_path):
    for project in blocks(text(page), "toml"):
        (tmp_path / "csada.toml").write_text(project)
    makefile = (ROOT / "Makefile").read_text()
    for program, *words in commands(page):
        if program == "csada":
            assert len(started(words)) == 1, words
        elif program == "make":
            assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words)
        elif program == "python" and words[0] != "-m":
            assert (ROOT / words[0]).exists()
        else:
            assert program in ("pip", "cd", "python")


@pytest.mark.parametrize("page", [p for p in PAGES if re.search(r"`csada\s", text(p))])
def test_commands_in_a_sentence_exist_too(page):
    known = dict(leaves(get_command(app)))
    for words in map(str.split, re.findall(r"`csada\s+((?!-)[^`]+)`", text(page))):
        name = next((name for name in (words[0], " ".join(words[:2])) if name in known), None)
        assert name, f"csada {' '.join(words)}"
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, words


QUICK = {  # what makes a command of the page short: before its own flags, which then win, and after them
    "train": (["--epochs", "1"], []),
    "fit": (["--epochs", "1"], []),
    "tune": ([], ["--trials", "1", "--epochs", "1"]),
}
RUN = """
import json, sys
from csada.cli import app
for words in json.load(sys.stdin):
    print(">>>", *words, flush=True)
    app(words, standalone_mode=False)
    if words[0] == "init":
        open("costs.csv", "w").write(sys.argv[1])
"""


def test_your_own_data_from_folder_to_decisions(tmp_path):
    """Every command of the page, in its order, on a folder as it describes; compare alone would take minutes."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'csada[onnx]'")
    page = text("own-data.md")
    (costs,) = blocks(page, "csv")
    names = re.findall(r"^  (\w+)/  ", blocks(page, "text")[0], re.MULTILINE)
    draw = np.random.default_rng(0)
    for k, name in enumerate(names):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(15):
            pixels = draw.integers(60, size=(24, 24, 3)) + 60 * k
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / name / f"{i:04}.png")
    listed = []
    for name, *words in (words for _, *words in commands("own-data.md") if words[0] != "compare"):
        before, after = QUICK.get(name, ([], []))
        listed.append([name, *before, *words, *after])
    every = {"data", "init", "costs", "train", "fit", "tune", "evaluate", "report", "export", "predict"}
    assert {words[0] for words in listed} == every
    ran = subprocess.run(
        [sys.executable, "-c", RUN, costs],
        input=json.dumps(listed),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "CSADA_CACHE": str(tmp_path / "cache")},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "10 is paid when trazodone is labelled as glipizide" in ran.stdout
    for made in ("report.html", "model.onnx", "table.csv", "model", "baseline", "tuned"):
        assert (tmp_path / made).exists()
    with (tmp_path / "decisions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15 and {row["class"] for row in rows} <= set(names)


def test_the_project_file_on_the_page_is_what_init_writes():
    (project,) = map(tomllib.loads, blocks(text("own-data.md"), "toml"))
    counts = {part: {"trazodone": 1, "glipizide": 1} for part in ("train", "validation", "test")}
    assert project == tomllib.loads(template("photos", "costs.csv", counts, choose(1906, 960, True, gpu=False)))


# -- what the pages claim --------------------------------------------------------------------------


def test_the_page_on_methods_names_them_all():
    table = text("choosing-a-method.md").split("## Methods")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(csada.METHODS)


@pytest.mark.parametrize("page", ["index.md", "choosing-a-method.md"])
def test_measured_numbers_stand_in_the_reproduction(page):
    measured = (DOCS / "reproduction.md").read_text() + "".join(p.read_text() for p in ROOT.glob("results/*.md"))
    shown = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)
    quoted = re.findall(r"(?:\b|−)\d+\.\d\d\b|\d[\d.]* %", shown)
    assert quoted
    for number in quoted:
        before = r"[\d.]" if number.endswith("%") else r"[\d.−]"  # "by 16 %" stands there as −16 %
        assert re.search(rf"(?<!{before}){re.escape(number)}(?!\d)", measured), f"{page} says {number}"


def test_extras_that_are_named_can_be_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in PAGES:
        named = ",".join(re.findall(r"(?:csada|\.)\[([\w,]+)\]'", text(page)))
        assert not named or set(named.split(",")) <= set(extras), page


# -- the site --------------------------------------------------------------------------------------


def test_every_file_that_the_readme_links_is_there():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        assert len(links) > 1
        for target in (link for link in links if "/" in link):
            assert (ROOT / target).exists(), f"{page.name} links {target}"


class Found(HTMLParser):
    """What a page links, what it loads, and where it can be linked."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif target := given.get("src") or (tag == "link" and given.get("href")):
            self.loads.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for library in ("mkdocs", "material", "mkdocstrings_handlers.python", "latex2mathml"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'csada[docs]'")
    out = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    return {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}


def test_every_page_is_built_and_every_link_in_it_leads_somewhere(site):
    assert {page.replace(".md", ".html") for page in PAGES} <= set(site)
    pages = {name: Found(path) for name, path in site.items() if name.endswith(".html")}
    for name, page in pages.items():
        if name == "404.html":  # its links are those of a server's root
            continue
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "data") or parts.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path))) if parts.path else name
            assert target in site, f"{name} links {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{name} links {link}"


def test_nothing_is_loaded_from_elsewhere(site):
    for name, path in site.items():
        if name.endswith(".html"):
            outside = [load for load in Found(path).loads if urlsplit(load).netloc]
            assert not outside, f"{name} loads {outside}"
        elif name.endswith(".css"):
            assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), name


def test_formulas_are_written_out(site):
    page = site["equations.html"].read_text()
    formulas = re.findall(r"<math .*?</math>", page, re.DOTALL)
    assert len(formulas) > 40 and "arithmatex" not in page
    assert not [formula for formula in formulas if "\\" in formula]  # what was not understood stays as it was written


def test_every_public_name_has_its_entry(site):
    ids = set().union(*(Found(path).ids for name, path in site.items() if name.startswith("api/")))
    objects = [getattr(csada, name) for name in csada.__all__ if name not in ("METHODS", "data", "models")]
    for thing in [*objects, *csada.METHODS.values()]:
        homes = {thing.__module__, thing.__module__.rpartition(".")[0]}  # its file, or the room that the file is in
        assert {f"{home}.{thing.__qualname__}" for home in homes} & ids, thing


def test_a_browser_shows_the_formulas_without_a_network(site):
    asked = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site["equations.html"].as_uri())
        heights = page.eval_on_selector_all("math", "all => all.map(m => m.getBoundingClientRect().height)")
    assert len(heights) > 40 and min(heights) > 5
    assert all(urlsplit(url).scheme in ("file", "data") for url in asked)
