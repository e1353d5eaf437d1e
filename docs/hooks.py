"""What the site needs beyond Markdown: results as pages, formulas as MathML, docstrings as they are written.

The same Markdown serves in the repository, where ../results and ../src are links to files.
"""

import html
import re
from pathlib import Path

import griffe
from latex2mathml.converter import convert
from mkdocs.structure.files import File, InclusionLevel

RESULTS = Path(__file__).parents[1] / "results"
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")  # a link from docs/ to the rest of the repository
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.+?)\\[)\]]</\1>', re.DOTALL)
CODE_OR_BRACKET = re.compile(r"(`[^`]*`)|\[")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def on_files(files, config):
    for path in sorted([*RESULTS.glob("*.md"), *RESULTS.glob("*.png")]):
        uri, inclusion = f"results/{path.name}", InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, abs_src_path=str(path), inclusion=inclusion))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links to results stay in the site; what else is outside docs/ is named, not linked."""
    if "/" in page.file.src_uri:
        return markdown
    return OUTSIDE.sub(lambda m: f"[{m[1]}]({m[2]})" if m[2].startswith("results/") else m[1], markdown)


def on_page_content(content, page, config, files):
    """Every browser draws MathML by itself: no script, no font to fetch."""

    def drawn(match):
        block = match[1] == "div"
        formula = convert(html.unescape(match[2]).strip(), display="block" if block else "inline")
        return f'<div class="formula">{formula}</div>' if block else formula

    return FORMULA.sub(drawn, content)


class PlainDocstrings(griffe.Extension):
    """Docstrings are plain text: `[N, K]` and `METHODS[name](costs)` are no links, and an example is code."""

    def on_instance(self, *, obj, **_):
        if obj.docstring is not None:
            lines = [
                line if line.startswith("    ") else CODE_OR_BRACKET.sub(lambda m: m[1] or r"\[", line)
                for line in obj.docstring.value.splitlines()
            ]
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", "\n".join(lines))
