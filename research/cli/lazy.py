"""Commands whose modules are imported when they are asked for: `ajet --help` waits for none of them.

A group knows its commands by name, place and first line. Listing them, completing a name and suggesting the nearest one
needs no more; running one, or asking for its own help, imports its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from typer._click import Command, Context


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is not imported yet."""

    module: str
    name: str
    """Of the function in the module, or of the typer.Typer that is a group."""
    help: str
    """The first line of the command's own help; a test holds that they agree."""

    def load(self, name: str) -> Command:
        """Import the command and return it under this name."""
        found, host = getattr(import_module(self.module), self.name), typer.Typer()
        if isinstance(found, typer.Typer):
            host.add_typer(found, name=name)
        else:
            from research.cli.once import NamingOnce

            host.command(name, cls=NamingOnce)(found)
        return get_group(host).commands[name]


class LazyGroup(TyperGroup):
    """A group of commands that are imported one at a time, each when it is run."""

    lazy: ClassVar[Mapping[str, Lazy]] = {}

    def __init__(self, **settings: Any) -> None:
        listed = {name: TyperCommand(name, help=lazy.help) for name, lazy in self.lazy.items()}
        super().__init__(**{**settings, "commands": listed})

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Find the command that the arguments name, and import it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else self.lazy[name].load(name), rest
