"""What README and documentation show is true: code runs, commands exist, links lead somewhere, and nothing is fetched."""

import doctest
import functools
import html
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import chromium
from typer.main import get_command
from typer.testing import CliRunner

import csada
from csada.cli import app
from csada.workflow.project import choose, template

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
PARTS = ("train", "validation", "test")
ELSEWHERE = {"adding-a-method.md"}  # test_adding_a_method.py runs its code and looks at what comes of it
ELSEWHERE_RUN = {"pharmacy.md"}  # test_story.py runs its commands
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


def hook(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


leaves = hook("commands").leaves


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


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p) and p not in ELSEWHERE_RUN])
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


def test_the_reference_has_every_command_with_all_that_it_takes(site):
    """Read from the commands' own help, as a user sees it, and not from what the reference is made of."""
    _, *found = re.split(r'<h2 id="csada-([a-z-]+)">', site["commands.html"].read_text(encoding="utf-8"))
    plain = (" ".join(html.unescape(re.sub(r"<[^>]+>", "", part)).split()) for part in found[1::2])
    sections = dict(zip(found[::2], plain, strict=True))
    for name, _ in leaves(get_command(app)):
        shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
        usage, summary, *_ = (line.strip() for line in shown.splitlines() if line.strip())
        said = [*re.findall(r"--[a-z-]+", shown), *re.findall(r"\[default: ([^\]]+)\]", shown), summary]
        section = sections[name.replace(" ", "-")]
        assert not [words for words in {*said} - {"--help"} if words.removeprefix("no-") not in section], usage


def test_exit_codes_are_named_once_in_the_reference():
    told = {
        page: re.findall(r"^\| (\d+) \|", text(page), re.MULTILINE)
        for page in PAGES
        if "exit code" in text(page).lower()
    }
    assert told == {"commands.md": ["0", "1", "2", "3", "130", "143"], "acceptance.md": []}


def test_the_project_file_on_the_page_is_what_init_writes():
    (project,) = blocks(text("own-data.md"), "toml")
    names = ["amlodipine", "glipizide", "ranitidine"]
    counts = {part: dict.fromkeys(names, 0) | {"trazodone": n} for part, n in zip(PARTS, (1906, 631, 633), strict=True)}
    assert project == template("photos", "costs.csv", counts, choose(1906, 960, True, gpu=False))


# -- what the pages claim --------------------------------------------------------------------------


def test_the_page_on_methods_names_them_all():
    table = text("choosing-a-method.md").split("## Methods")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(csada.METHODS)


@pytest.mark.parametrize("page", ["../README.md", "index.md", "choosing-a-method.md"])
def test_measured_numbers_stand_in_the_reproduction(page):
    measured = "".join((DOCS / name).read_text() for name in ("reproduction.md", "study.md")) + "".join(
        p.read_text() for p in ROOT.glob("results/*.md")
    )
    shown = re.sub(
        r"```.*?```", "", text(page).split("## What the evidence says")[-1].split("## Your own")[0], flags=re.DOTALL
    )
    quoted = re.findall(r"(?:\b|−)\d+\.\d\d\b|\d[\d.]* %", shown)
    assert quoted
    for number in quoted:
        before = r"[\d.]" if number.endswith("%") else r"[\d.−]"  # "by 16 %" stands there as −16 %
        assert re.search(rf"(?<!{before}){re.escape(number)}(?!\d)", measured), f"{page} says {number}"


def test_the_citation_names_this_version_and_the_readmes_paper():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'csada[docs]'")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    (paper,), (entry,) = cited["references"], blocks((ROOT / "README.md").read_text(encoding="utf-8"), "bibtex")
    people = " and ".join(f"{person['family-names']}, {person['given-names']}" for person in paper["authors"])
    pages = f"{paper['start']}--{paper['end']}"
    for value in (paper["title"], people, paper["journal"], paper["volume"], paper["issue"], pages, paper["year"]):
        assert f"{{{value}}}" in entry
    assert paper["url"].rpartition("/")[2] in entry


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
