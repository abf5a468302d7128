"""Choosing a planner by name, with its settings from the environment, before anything is begun."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from research.errors import PlannerUnready, UnknownPlanner
from research.planner.llm import OPENAI, LlmPlanner
from research.planner.protocol import Planner
from research.planner.rules import RulesPlanner

PLANNERS = ("rules", "llm")
_NO_KEY = "none"
"""Sent where an endpoint of one's own needs no key; the SDK wants one."""


def make_planner(name: str | None, model: str | None, environ: Mapping[str, str]) -> Planner:
    """Return the planner called `name`; without a name, `llm` when a model is named and `rules` otherwise.

    `llm` reads OPENAI_BASE_URL and OPENAI_API_KEY from `environ`. Raises UnknownPlanner or PlannerUnready; it does not
    reach out to the endpoint.
    """
    chosen = name or ("llm" if model else "rules")
    if chosen not in PLANNERS:
        raise UnknownPlanner(f"expected a planner among {', '.join(PLANNERS)}; found {chosen!r}; choose one of them")
    if chosen == "rules":
        return RulesPlanner()
    return _llm(model, environ.get("OPENAI_BASE_URL", "").strip(), environ.get("OPENAI_API_KEY", "").strip())


def _llm(model: str | None, base_url: str, key: str) -> LlmPlanner:
    if not model:
        raise PlannerUnready("the planner llm expects a model; found none; pass --model NAME")
    if not base_url and not key:
        raise PlannerUnready(
            "the planner llm expects an endpoint; found neither OPENAI_BASE_URL nor OPENAI_API_KEY; set OPENAI_API_KEY "
            "(and OPENAI_BASE_URL for an endpoint of your own), or use --planner rules"
        )
    if base_url and not is_address(base_url):
        raise PlannerUnready(
            "OPENAI_BASE_URL expects an address such as http://127.0.0.1:8000/v1; found something else; correct it"
        )
    if not (key.isascii() and key.isprintable()):
        raise PlannerUnready("OPENAI_API_KEY expects printable ASCII; found other characters; copy the key again")
    return LlmPlanner(model, api_key=key or _NO_KEY, base_url=base_url or OPENAI)


def is_address(text: str) -> bool:
    """Return whether a text is an http(s) address with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
