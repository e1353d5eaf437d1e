"""The code that the README shows runs, and so do the examples in docstrings."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def test_the_readmes_code_runs(capsys):
    (code,) = blocks(ROOT / "README.md")
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.count("weighted error rate") == 3 and "1 -> 7: " in printed


def test_every_file_that_the_readme_links_is_there():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        assert len(links) > 1
        for target in (link for link in links if "/" in link):
            assert (ROOT / target).exists(), f"{page.name} links {target}"


@pytest.mark.parametrize("module", ["costs", "metrics", "decisions", "attacks"])
def test_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"csada.{module}")).failed == 0
