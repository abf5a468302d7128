"""What a study is of is named once: of two, one would be dropped without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand

from research.errors import BadTopic

if TYPE_CHECKING:
    from typer._click import Context

_INSTEAD: Final[Mapping[str, str]] = {
    "model_path": "leave one out, or compare the models with --vary model=DIR1,DIR2",
    "job": "leave one out, or make one file of both",
    "env": "leave one out, or begin a study of each",
    "reward": "leave one out",
}
"""Options that are given once, and what to do where there are two."""


class NamingOnce(TyperCommand):
    """A command that refuses two environments, models or jobs where it takes one of each."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Read the arguments; raise BadTopic for what is named twice."""
        values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        times: Counter[Any] = Counter(option.name for option in given)
        for name, instead in _INSTEAD.items():
            if times[name] > 1:
                option = f"--{name.replace('_', '-')}"
                raise BadTopic(f"expected {option} once; found it {times[name]} times, last {values[name]}; {instead}")
        return super().parse_args(ctx, args)
