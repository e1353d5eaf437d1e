"""The command-line reference, written from the commands themselves while the site is built.

docs/commands.md holds what is said once for all commands; MARK there becomes one section per command.
"""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from csada.cli import app

PAGE, MARK = "commands.md", "*One section per command follows here when the site is built: `make docs`.*"


def on_page_markdown(markdown, page, config, files):
    return markdown.replace(MARK, reference()) if page.file.src_uri == PAGE else markdown


def leaves(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """("costs check", the command), ...: every command that does something."""
    for name, command in group.commands.items():
        yield from leaves(command, f"{before}{name} ") if hasattr(command, "commands") else [(before + name, command)]


def reference() -> str:
    return "\n\n".join(section(name, command) for name, command in sorted(leaves(get_command(app))))


def section(name: str, command: Any) -> str:
    text, example = command.help.split("Example: ")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    parts = [f"## csada {name}", text.strip(), f"```sh\n{example.strip()}\n```"]
    for heading, listed in (("argument", arguments), ("option", options)):
        if listed:
            parts.append(f"| {heading} | what it is | default |\n| --- | --- | --- |\n" + "\n".join(map(row, listed)))
    return "\n\n".join(parts)


def row(parameter: Any) -> str:
    cells = shown(parameter), parameter.help or "", default(parameter)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def shown(parameter: Any) -> str:
    """`DATA`, `INPUTS...`, `--budget BUDGET`, `--trust`"""
    value = parameter.metavar or parameter.name.upper()
    if parameter.param_type_name == "argument":
        return f"`{value}...`" if parameter.nargs == -1 else f"`{value}`"
    name = " / ".join([*parameter.opts, *parameter.secondary_opts])
    return f"`{name}`" if parameter.is_flag else f"`{name} {parameter.metavar or parameter.opts[0].strip('-').upper()}`"


def default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if parameter.default is None or parameter.default is False:
        return ""
    return f"`{parameter.default}`"
