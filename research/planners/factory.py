"""Choosing a planner by name, with its settings from the environment, before anything is begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from research.errors import PlannerUnready, ResearchError, UnknownPlanner
from research.llm_planner.endpoint import OpenAiEndpoint
from research.llm_planner.planner import LlmPlanner
from research.llm_planner.recording import Recorder, Replay
from research.planner.protocol import Planner
from research.rule_planner.planner import RulesPlanner
from research.spelling import did_you_mean
from swarm.entry_points import PLANNERS, EntryPointBroken, load
from swarm.entry_points import known as known_names

BUILT_IN = ("rules", "llm")
OPENAI = "https://api.openai.com/v1"
RECORD, REPLAY = "AJET_PLANNER_RECORD", "AJET_PLANNER_REPLAY"
"""Environment variables that name a file to record a language model in, or to replay it from."""
_NO_KEY = "none"
"""Sent where an endpoint of one's own needs no key; the SDK wants one."""


def make_planner(
    name: str | None,
    model: str | None,
    environ: Mapping[str, str],
    *,
    record: Path | None = None,
    replay: Path | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Planner:
    """Return the planner called `name`; without a name, `llm` when a model is named and `rules` otherwise.

    A name besides these is one that an installed package brings by an entry point in `ajet.planners`: a callable of
    `model` and `environ` that returns a planner of that very name.

    `llm` reads OPENAI_BASE_URL and OPENAI_API_KEY from `environ`. What it says is written to the file `record`, or read
    from `replay` with neither address nor key (default: AJET_PLANNER_RECORD and AJET_PLANNER_REPLAY); `note` is told of
    each pause while an endpoint does not answer. Raises UnknownPlanner or PlannerUnready; it does not reach out to the
    endpoint.
    """
    chosen = name or ("llm" if model else "rules")
    known = planner_names()
    if chosen not in known:
        near = did_you_mean(chosen, known) or "; choose one of them"
        raise UnknownPlanner(f"expected a planner among {', '.join(known)}; found {chosen!r}{near}")
    if chosen == "rules":
        if model:
            raise PlannerUnready(
                f"expected no --planner-model beside the planner rules, which asks no model; found {model}; add "
                "--planner llm"
            )
        if record or replay:
            raise PlannerUnready("expected the planner llm to record or replay; found rules; add --planner llm")
        return RulesPlanner()
    if chosen != "llm":
        if record or replay:
            raise PlannerUnready(f"expected the planner llm to record or replay; found {chosen}; name --planner llm")
        return _installed(chosen, model, environ)
    if not record and not replay:
        record, replay = _file(environ, RECORD), _file(environ, REPLAY)
    if record and replay:
        raise PlannerUnready("expected to record or to replay a planner; found both; leave one out")
    if replay:
        recorded = Replay(replay)
        return LlmPlanner(model or recorded.model, recorded, note=note)
    endpoint = _endpoint(model, environ.get("OPENAI_BASE_URL", "").strip(), environ.get("OPENAI_API_KEY", "").strip())
    return LlmPlanner(str(model), Recorder(endpoint, record) if record else endpoint, note=note)


def planner_names() -> tuple[str, ...]:
    """Return the names of all planners: ajet's own, then those of installed packages."""
    return known_names(PLANNERS, BUILT_IN)


def _installed(name: str, model: str | None, environ: Mapping[str, str]) -> Planner:
    """Return a package's planner; raise PlannerUnready where it cannot be made, or goes by another name."""
    try:
        planner: Planner = load(PLANNERS, name)(model, environ)
    except ResearchError:
        raise
    except EntryPointBroken as error:
        raise PlannerUnready(str(error)) from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PlannerUnready(
            f"expected the planner {name} of a package to be made; found {said}; mend that package"
        ) from error
    if getattr(planner, "name", None) != name:
        raise PlannerUnready(
            f"expected the planner {name} to have that name, by which a study is resumed; found "
            f"{getattr(planner, 'name', None)!r}; correct it in its package"
        )
    return planner


def _file(environ: Mapping[str, str], variable: str) -> Path | None:
    named = environ.get(variable, "").strip()
    return Path(named) if named else None


def _endpoint(model: str | None, base_url: str, key: str) -> OpenAiEndpoint:
    if not model:
        raise PlannerUnready("the planner llm expects a model; found none; pass --planner-model NAME")
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
    return OpenAiEndpoint(api_key=key or _NO_KEY, base_url=base_url or OPENAI)


def is_address(text: str) -> bool:
    """Return whether a text is an http(s) address with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
