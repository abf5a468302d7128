"""The command `ajet`: lazily imported subcommands, errors as a line and an exit code, and how answers are printed.

Exit codes: 0 done; 1 the thing asked about is not well (doctor, study verify, env check); 2 bad input or an environment
that cannot do it, in one line on stderr; 3 a study stopped by its budget; 130 stopped by a person. Listing and
completing commands imports none of their modules.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import version
from inspect import Parameter, Signature, signature
from io import StringIO
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Concatenate, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group
from typer.models import ParameterInfo

from research.errors import BadInput
from research.own_process import begin_process
from research.text import strip_control_chars, warn

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typer._click import Command, Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem

    from research.installation.home import Home
    from studies import EventLog, StudyState

    Options = TypeVar("Options", bound=BaseModel)
    Own = ParamSpec("Own")


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is not imported yet."""

    module: str
    name: str
    """Of the function in the module, or of the typer.Typer that is a group."""
    help: str = ""
    """What a group is; of a function its docstring says it."""

    def load(self, name: str) -> Command:
        found, host = getattr(import_module(self.module), self.name), typer.Typer()
        if isinstance(found, typer.Typer):
            if found.registered_callback is None:  # a group that does something by itself says what, with examples
                found.info.help = self.help
            host.add_typer(found, name=name)
        else:
            host.command(name)(found)
        return get_group(host).commands[name]

    def describe(self) -> str:
        """Return the line of a list of commands: the first of the docstring, read from the source."""
        if self.help:
            return self.help
        source = Path(__file__).with_name(f"{self.module.rpartition('.')[2]}.py").read_text(encoding="utf-8")
        functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        return (ast.get_docstring(next(node for node in functions if node.name == self.name)) or "").splitlines()[0]


class LazyGroup(TyperGroup):
    """A group of commands that are imported one at a time, each when it is run."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": {name: TyperCommand(name) for name in self.lazy}})

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else self.lazy[name].load(name), rest

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        self._describe_commands()
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        self._describe_commands()
        return super().shell_complete(ctx, incomplete)

    def _describe_commands(self) -> None:
        for name, command in self.commands.items():
            command.help = self.lazy[name].describe()


def commands(group: str) -> dict[str, LazyCommand]:
    listed = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))[group]
    return {name: LazyCommand(**{"name": name, **where}) for name, where in listed.items()}


class Studies(LazyGroup):
    """What can be done with studies."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = commands("study")


study_app = typer.Typer(cls=Studies, no_args_is_help=True)


class Ajet(LazyGroup):
    """What `ajet` can be asked for."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = commands("ajet")


app = typer.Typer(
    name="ajet",
    cls=Ajet,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"ajet {version('ajet')}\n")
        raise typer.Exit


@app.callback()
def ajet(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Autonomous reinforcement-learning research: a topic goes in, a report one can trust comes out."""


def run() -> NoReturn:
    begin_process()
    try:
        for argument in sys.argv[1:]:
            try:
                argument.encode()
            except UnicodeEncodeError:
                _fail(f"expected arguments in UTF-8; found {argument[:80]!r}; type it again, or set LANG=C.UTF-8")
        app()
    except SystemExit:  # how a command ends; nothing more is imported to say so
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except _expected_errors() as error:
        _fail(str(error))
    except OSError as error:
        from research.installation.home import cause_of

        name = str(error.filename or "a file")
        ours = Path(name).absolute().is_relative_to(Path(environ.get("AJET_HOME") or ".ajet").absolute())
        _fail(f"could not read or write {name}: {cause_of(error)}. Mend it{', or set AJET_HOME' if ours else ''}")
    sys.exit(0)


def _expected_errors() -> tuple[type[Exception], ...]:
    """Return what every room raises for a person to read; importing the rooms takes longer than `--help` does."""
    from research.errors import ResearchError
    from sandboxes import SandboxError
    from studies import StudiesError
    from swarm.errors import SwarmError

    return ResearchError, StudiesError, SwarmError, SandboxError


def _fail(message: str) -> NoReturn:
    warn(" ".join(message.split()))
    sys.exit(2)


def takes_options(
    model: type[Options], omit: AbstractSet[str] = frozenset()
) -> Callable[[Callable[Concatenate[Options, Own], None]], Callable[..., None]]:
    """Give a command the fields of a model as options, before its own; it is called with the model.

    A field is an option as its annotation says; those in `omit` keep their default.
    """
    shared: dict[str, Parameter] = {}
    for name, field in model.model_fields.items():
        if name not in omit:
            own = [each for each in field.metadata if isinstance(each, ParameterInfo)]
            kind = Annotated[field.annotation, *(own or [typer.Option(help=field.description)])]  # type: ignore[name-defined]
            default = field.get_default(call_default_factory=True)
            shared[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    def decorate(command: Callable[Concatenate[Options, Own], None]) -> Callable[..., None]:
        own = [
            each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(command, eval_str=True).parameters.values()
        ]

        @wraps(command)
        def run(*args: Own.args, **given: Own.kwargs) -> None:
            from pydantic import ValidationError

            from research.text import describe

            try:
                options = model(**{name: given.pop(name) for name in shared if name in given})
            except ValidationError as error:
                raise BadInput(f"expected options as --help says them; found {describe(error)}") from error
            command(options, *args, **given)

        run.__dict__.pop("__wrapped__")  # of which typer would read the annotations
        run.__dict__["__signature__"] = Signature([*shared.values(), *own[1:]])
        run.__annotations__ = {}
        return run

    return decorate


Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Name = Annotated[str | None, typer.Argument(help="Study id or its beginning; the newest when left out.")]


def open_installation() -> tuple[Home, EventLog]:
    from research.installation.home import Home
    from studies import EventLog

    home = Home.locate().for_reading()
    return home, EventLog(home.database)


def open_study(name: str | None) -> tuple[Home, EventLog, StudyState]:
    """Return the study that is meant, with the installation and log that it is of; raise BadInput."""
    from research.installation.studies import find_study
    from studies import fold

    home, log = open_installation()
    return home, log, fold(log.read(find_study(log, name)))


_WIDE = 160
"""Columns for tables in a pipe or a file."""


class _BareConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(strip_control_chars(segment.text), segment.style)


@cache
def console() -> Console:
    """Return the console for people's output: no text is markup; nothing is wrapped where no terminal asks for it."""
    width = None if sys.stdout.isatty() else _WIDE
    return _BareConsole(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def recording_console(width: int) -> Console:
    """Return a console that prints nowhere, and keeps what it is given for a page (`export_html`)."""
    style: dict[str, Any] = {"force_terminal": True, "color_system": "truecolor", "record": True, "file": StringIO()}
    return _BareConsole(highlight=False, markup=False, emoji=False, width=width, **style)


@contextmanager
def show_progress(json: bool, text: str, otherwise: Callable[[str], None] = warn) -> Iterator[Callable[[str], None]]:
    """Yield where to say what is being done: a line that changes on a terminal, `otherwise` elsewhere."""
    if json or not sys.stdout.isatty():
        yield otherwise
        return
    with console().status(text) as status:
        yield lambda line: status.update(Text(line))  # which reads plain text as markup, whatever its console


def print_json(value: Any) -> None:
    """Print records (pydantic's, dataclasses), or plain values that hold them, as JSON with the records' own keys."""
    sys.stdout.write(json.dumps(value, indent=2, default=_to_plain) + "\n")


def _to_plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(value) if isinstance(value, Mapping) else str(value)


def answer(as_json: bool, value: Any, *parts: RenderableType | Iterator[RenderableType]) -> None:
    """Answer a command: with `value` as JSON where a script asks, else with what is printed for people.

    A part may be an iterator of several, which is drawn for people alone.
    """
    if as_json:
        print_json(value)
        return
    for part in parts:
        for line in part if isinstance(part, Iterator) else (part,):
            console().print(line, soft_wrap=isinstance(line, str))  # a name or a path stays in one line


def make_table(
    names: Sequence[str], rows: Iterable[Sequence[RenderableType]], *, right: Container[str] = (),
    wraps: Container[str] = (), **options: Any,
) -> Table:  # fmt: skip
    """Return a table without lines whose columns are whole, but for those that may wrap; `right` are aligned there.

    Where a terminal is too narrow for a whole column it says so by an ellipsis: half of a number looks like another.
    """
    table = Table(box=None, pad_edge=False, **options)
    for name in names:
        table.add_column(
            name, header_style="dim", justify="right" if name in right else "left",
            overflow="fold" if name in wraps else "ellipsis", no_wrap=name not in wraps,
        )  # fmt: skip
    for row in rows:
        table.add_row(*row)
    return table


def make_facts(facts: Iterable[tuple[str, str | Text]]) -> Table:
    return make_table(("", ""), ((Text(name, "dim"), text) for name, text in facts), wraps=("",), show_header=False)
