"""An episode as one self-contained page: nothing fetched, light and dark, fit for a phone."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from research.cli.swarm.episodes.token_view import LEVELS, PART, ViewedToken, call_views, facts, has_texts, shown, sums
from swarm.wire import EpisodeRecord

if TYPE_CHECKING:
    from jinja2 import Template


def episode_page(record: EpisodeRecord) -> str:
    """Return the page as HTML."""
    calls = call_views(record)
    return _template().render(
        id=shown(record.id),
        facts=facts(record),
        calls=calls,
        sums=sums(calls),
        levels=[name for _, name in LEVELS],
        has_texts=has_texts(calls),
        word=_word,
        shape=_shape,
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # one command in ten makes a page

    environment = Environment(
        loader=PackageLoader("research.cli.swarm.episodes", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("episode.html.jinja")


def _word(token: ViewedToken) -> str:
    if token.text is None:
        return str(token.id)
    return "↵\n".join(shown(line) for line in token.text.split("\n")) or PART


def _shape(token: ViewedToken) -> str:
    """Return the classes of a token."""
    names = ["s"] if token.special else []
    if token.level is not None:
        names.append(f"l{token.level}")
    if token.text is None:
        names.append("i")
    return " ".join(names)
