"""The project file: commands read from it the settings that are not given, and `csada init` writes one."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from typer import BadParameter, Exit, Option
from typer.core import TyperGroup

from csada import bounds
from csada.cli import common as cli
from csada.errors import InputError, explained
from csada.files import write_text

if typing.TYPE_CHECKING:
    from csada.workflow.project import Commands

FILE = "csada.toml"
# their first argument is a model that fit or tune made
TAKE = ("evaluate", "check", "report", "review", "export", "predict", "monitor")
TAKEN = "Where fit and tune have both made a model of a project, the cheaper one on validation is taken; name one to take that."
NAMES = ("data", "costs", "pretrained", "features")  # text that may be a path
STRANGERS = ("csada.cli.paper", "csada.cli.project")  # commands with settings of their own

KEPT = {  # by a command that was interrupted
    **dict.fromkeys(("train", "fit"), "epochs up to the last checkpoint"),
    **{"tune": "trials so far", "reproduce": "runs so far", "compare": "rows so far"},
}
PANELS = {  # of csada --help, with the commands in the order in which a user needs them
    "Your own data": "init data costs train fit tune compare evaluate check report review predict monitor export decide diff",
    "The paper and its experiments": "demo toy tabular reproduce study tables figures",
}


class ProjectGroup(TyperGroup):
    """Before a command reads its arguments, the project file fills in what is missing."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        panels = {name: panel for panel, names in PANELS.items() for name in names.split()}
        self.commands = {**{name: self.commands[name] for name in panels}, **self.commands}
        for name, panel in panels.items():
            typing.cast("Any", self.commands[name]).rich_help_panel = panel
        for name in TAKE:
            command = self.commands[name]
            command.help = str(command.help).replace("\n\nExample:", f"\n\n{TAKEN}\n\nExample:")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        given = ctx.params.get("project")
        if ctx.resilient_parsing or "--help" in rest or not (given or Path(FILE).exists()):
            return name, command, rest
        from csada.workflow.project import Models, read

        path = Path(given or FILE)
        depth = 1 if hasattr(command, "commands") else 0  # csada costs check: the group's command comes next
        key = " ".join([str(name), *rest[:depth]])
        known = known_settings(self)
        if key not in known:
            return name, command, rest
        tables = read(path, known)
        settings, models = tables[key], Models.of(tables)
        if settings:
            cli.warn(f"settings from {path}", style="dim")
        # What may be repeated goes before the flags that were given, which then add to it or win.
        flags = [word for s, values in settings.items() if s.flag for v in values for word in (s.flag, str(v))]
        defaults = {s.parameter: value for s, value in settings.items() if not s.flag}
        ctx.default_map = {name: {rest[0]: defaults} if depth else defaults}
        first = _model(command, defaults, rest)
        if name in TAKE:
            tried: Any = typing.cast("Any", command).make_context(
                name, first + flags + rest, ctx, resilient_parsing=True
            )
            argument = tried.command.params[0].name
            taken, why = Path(tried.params[argument] or ""), ""
            if first or tried.get_parameter_source(argument).name == "DEFAULT_MAP":  # nobody named one
                taken, why = models.choose(taken)
                if name == "review":
                    taken, why = models.reviewed(taken, why)
                first, defaults[argument] = [str(taken)] * len(first), str(taken)
            cli.note(*filter(None, (why, models.outdated(taken))))
        elif name == "compare" and models.fitted is not None:
            cli.note(*filter(None, [models.outdated(models.fitted)]))
        return name, command, rest[:depth] + first + flags + rest[depth:]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            kept = KEPT.get(ctx.invoked_subcommand)
            resumes = f"; the {kept} are kept: the same command resumes" if kept else ""
            cli.warn(f"csada: interrupted{resumes}", style="red")
            raise Exit(143 if isinstance(stop, cli.Terminated) else 130) from None
        except BadParameter as error:
            if not hasattr(error, "param_type") or ctx.params.get("project") or Path(FILE).exists():
                raise
            inner: Any = error.ctx  # of the command that misses its arguments
            if inner.command.callback.__module__ in STRANGERS:
                raise
            required = [p for p in inner.command.params if p.required]
            *others, last = [p.name.upper() if p.param_type_name == "argument" else p.opts[0] for p in required]
            needed = f"{', '.join(others)} and {last}" if others else last
            raise InputError(f"no {FILE} here; give {needed}, or run csada init DATA") from None


def _model(command: Any, defaults: dict[str, Any], words: list[str]) -> list[str]:
    """The project's model, where the other arguments are a list that would swallow it: csada predict photos/*.jpg"""
    first, *others = [p for p in getattr(command, "params", ()) if p.param_type_name == "argument"] or [None]
    if not others or others[-1].nargs != -1 or first.name not in defaults:
        return []
    told = any(Path(word).suffix == ".onnx" or (Path(word) / "model.json").exists() for word in words)
    return [] if told else [str(defaults[first.name])]


def known_settings(group: Any) -> Commands:
    """What can be set for each command, by the name of its argument or flag."""
    from csada.workflow.project import Setting

    def setting(parameter: Any, hint: Any) -> Setting:
        option = parameter.param_type_name == "option"
        many, is_path = parameter.nargs == -1 or (option and parameter.multiple), "pathlib" in str(hint)
        kind = list[str] if many else str if is_path else hint
        flag = parameter.opts[0] if many and option else None
        return Setting(parameter.name, kind, is_path, parameter.name in NAMES, flag)

    known = {}
    for name, command in _commands(group):
        if command.callback.__module__ not in STRANGERS:
            taken = inspect.signature(command.callback, eval_str=True).parameters.values()
            hints = {p.name: p.annotation for p in taken}
            hints |= {n: h.__origin__ for n, h in hints.items() if typing.get_origin(h) is Annotated}
            own = [p for p in command.params if p.name in hints and p.name != "force"]  # a file overwrites nothing
            known[name] = {p.opts[0].lstrip("-").replace("-", "_"): setting(p, hints[p.name]) for p in own}
    return known


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


@cli.app.callback(cls=ProjectGroup)
def options(
    project: Annotated[
        Path | None, Option(help="The file with the settings; by default csada.toml in this folder.")
    ] = None,
    bound: Annotated[
        list[str] | None, Option(metavar="NAME=NUMBER", help="Another bound on what is read: docs/bounds.md.")
    ] = None,
) -> None:
    """What holds for every command; ProjectGroup makes use of it."""
    bounds.raised(text := ",".join(bound or ()))
    os.environ[bounds.VARIABLE] = ",".join(filter(None, (os.environ.get(bounds.VARIABLE), text)))


@cli.command()
def init(
    data: cli.DataSet,
    out: Annotated[Path, Option("--out", help="The project's folder.")] = Path("."),
    costs: Annotated[str | None, Option(help="An existing CSV file, or pmi; by default a template is made.")] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing csada.toml; never the costs.")] = False,
    label: cli.Label = None,
    ignore: cli.Ignore = None,
) -> None:
    """Start a project: csada.toml with settings that suit the data, and a file of costs to fill in.

    Example: csada init photos
    """
    file, table = out / FILE, out / "costs.csv"
    if file.exists() and not force:
        raise InputError(f"{file} is there already; --force overwrites it, --out names another folder")
    import torch

    from csada.cli.costs import read_costs, write_template
    from csada.data import counts
    from csada.workflow.project import choose, images, template

    own = cli.given(label=label, ignore=ignore)
    samples = counts(data, on_warnings=cli.note, **own)
    is_new = costs is None and not table.exists()
    costs = costs or str(table)
    if not is_new:
        read_costs(costs, data, **own)
    choice = choose(sum(samples["train"].values()), *images(data), gpu=torch.cuda.is_available())
    with explained(f"cannot write to {out}", "choose another place with --out"):
        if is_new:
            write_template(table, samples["train"])
        write_text(file, template(_seen_from(out, data), _seen_from(out, costs), samples, choice, **own))
    cli.show_files([table, file] if is_new else [file])
    steps = {
        "csada costs check": "what the costs say",
        "csada train": f"{choice.train.model}, {choice.train.epochs} epochs, into baseline/",
        "csada review": "review.html, in which an expert can say what mistakes cost",
        "csada fit": "fewer expensive mistakes, into model/",
        "csada report": "report.html",
        "csada export": "model.onnx",
        "csada predict INPUTS": "decisions on new images or rows",
    }
    lines = [f"\nNext: say in {table} what each mistake costs. Then" if is_new else "\nNext:"]
    lines += [f"  cd {out}"] if out != Path(".") else []
    lines += [f"  {command:22}{what}" for command, what in steps.items()]
    cli.say(*lines)


def _seen_from(folder: Path, text: str) -> str:
    """A path that is there, as it reads from that folder; a name stays a name."""
    path = Path(text).expanduser()
    return text if path.is_absolute() or not path.exists() else Path(os.path.relpath(path, folder)).as_posix()
