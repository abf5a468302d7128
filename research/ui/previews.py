"""What is asked on the page Ask: options out of a form, previews made beside the pages, studies begun for the worker.

A preview by the rules costs nothing and is made when its address is opened; a language model is asked where a person
presses for it. A controller never lives here: a study that begins is handed to the worker.
"""

import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from research.controller.options import ResearchOptions, make_request, require_planner, require_understood
from research.controller.options import select_planner as choose_planner
from research.controller.preview import PlanPreview, preview_study
from research.controller.session import StudyRequest, begin_served
from research.controller.wandb import wandb_login
from research.environments.catalog import requirements_of
from research.errors import BadInput, NotReady, ResearchError
from research.installation.base_job import require_known
from research.installation.home import Home
from research.isolation.mode import choose
from research.orchestration.handover import find_worker
from research.orchestration.supervision import require_worker
from research.planners.rules import RulesPlanner
from research.text import describe
from sandboxes import SandboxError
from studies import EventLog
from studies.errors import StudiesError
from studies.records.design import MODEL
from swarm.environments.registry import environments
from swarm.errors import SwarmError
from swarm.job import Job

WAIT_S: Final = 2.5
"""How long a page waits for a preview before it says that it is at work."""
MOST_AT_WORK: Final = 8
PLAIN: Final = (
    "topic", "shape", "env", "effect", "power", "budget", "rounds", "max_runs", "episodes", "planner", "planner_model",
    "approve",
)  # fmt: skip
LISTS: Final = ("vary", "held", "metric")
"""Options that are given several times: an entry of a form's field on each line."""
_MOST_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Preview:
    """What a study would be, or why it would not; neither while it is worked on."""

    seen: PlanPreview | None = None
    refused: str = ""
    understood: ResearchOptions | None = None
    """What was understood of a topic, by flags."""
    notes: tuple[str, ...] = ()
    once: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    """Names it, so that it is begun once."""

    @property
    def done(self) -> bool:
        return self.seen is not None or bool(self.refused)


def read_options(asked: Mapping[str, str]) -> ResearchOptions:
    """Return the options that a form asks for. Raise BadInput: for what reads files, too, as a page has none of its
    reader's."""
    given: dict[str, Any] = {name: text for name in PLAIN if (text := asked.get(name, "").strip())}
    given |= {name: [line.strip() for line in asked.get(name, "").splitlines() if line.strip()] for name in LISTS}
    words = [text for value in given.values() for text in (value if isinstance(value, list) else [value])]
    if strange := next((text for text in words if not text.isprintable() or text.startswith("-")), ""):
        raise BadInput(f"expected plain words that begin with no dash; found {strange[:60]!r}; write it otherwise")
    if (name := given.get("env")) is not None and name not in environments():
        known = ", ".join(environments())
        raise BadInput(f"expected an environment that is here: {known}; another is brought in a terminal: --env")
    for entry in given["vary"]:
        name, _, values = entry.partition("=")
        if name.strip() == MODEL or any(part.strip().endswith(".py") for part in values.split(",")):
            raise BadInput(
                f"expected no files on a page; found {entry[:60]!r}; ask for it in a terminal: ajet research"
            )
    try:
        return ResearchOptions.model_validate(given)
    except ValidationError as error:
        raise BadInput(f"expected options as `ajet research --help` says them; found {describe(error)}") from error


def make_preview(home: Home, log: EventLog, asked: ResearchOptions) -> Preview:
    notes, understood = list[str](), None
    try:
        request = make_request(asked, notes.append)
        if request.parsed is not None:
            understood = asked.restate(request.parsed, request.requested)
        require_known((request.base or Job()).backend)
        planner = choose_planner(request, notes.append)
        if isinstance(planner, RulesPlanner):
            require_understood(request, None, asked)
        seen = preview_study(home, log, request, planner)
    except (ResearchError, StudiesError, SwarmError, SandboxError) as error:
        return Preview(None, " ".join(str(error).split()) or "refused", understood, tuple(notes))
    return Preview(seen, seen.refused or "", understood, tuple(notes))


class Previews:
    """Previews by what is asked, made by threads of their own. Safe to be used by several threads."""

    def __init__(self, home: Home, log: EventLog) -> None:
        self._home, self._log = home, log
        self._known: OrderedDict[tuple[str, ...], tuple[Mapping[str, str], Future[Preview]]] = OrderedDict()
        self._begun: dict[str, str] = {}
        self._lock, self._beginning = threading.Lock(), threading.Lock()
        self._workers = ThreadPoolExecutor(2, "plan")

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def find(self, asked: ResearchOptions, *, ask_model: bool = False, wait_s: float = WAIT_S) -> Preview | None:
        """Return the preview of what is asked, one that is not done where it takes long. None for what a language
        model plans, before it is asked with `ask_model`; one by the rules is made again once any study moved."""
        key, heads = asked.command(), self._log.heads()
        free = asked.planner == RulesPlanner.name or bool(asked.vary)
        with self._lock:
            known = self._known.get(key)
            idle = known is None or known[1].done()
            if idle and (ask_model or (free and (known is None or known[0] != heads))):
                if sum(not made.done() for _, made in self._known.values()) >= MOST_AT_WORK:
                    raise NotReady(f"expected fewer than {MOST_AT_WORK} plans at work; wait for one, and load it again")
                known = heads, self._workers.submit(make_preview, self._home, self._log, asked)
                self._known[key] = known
                while len(self._known) > _MOST_KEPT:
                    self._known.popitem(last=False)
        if known is None:
            return None
        try:
            return known[1].result(wait_s)
        except NotYet:
            return Preview(once="")

    def begin(self, asked: ResearchOptions, once: str = "") -> str:
        """Begin a study as `ajet research --detach` does, and return its id; as `begin_request`."""
        notes = list[str]()
        request = make_request(asked, notes.append)
        planner = require_planner(request, notes.append, asked=asked)
        named = replace(request, planner=planner.name, model=planner.model, command=asked.command())
        return self.begin_request(named, once, asked.sandbox)

    def begin_request(self, request: StudyRequest, once: str = "", sandbox: str | None = None) -> str:
        """Begin a study with the worker and return its id; the one that `once` began before. Raise what is wrong with
        it, and NotReady where no worker runs: nothing is begun then."""
        with self._beginning:
            if once in self._begun:
                return self._begun[once]
            notes, give = list[str](), find_worker(self._home)
            needs = requirements_of(request.requested.custom_environments)
            isolation = choose(sandbox, os.environ, self._home, notes.append, needs)
            created = replace(request, sandbox=isolation.sandboxing, wandb=wandb_login(os.environ).online)

            def hand(study: str) -> str:
                self._begun[once or study] = study  # also where it cannot be handed over: it is begun
                return give(study)

            return begin_served(self._home, self._log, created, hand, notes.append)[0]


def missing_worker(home: Home) -> str:
    """Return why there is no worker to hand a study to; empty where there is one."""
    try:
        require_worker(home)
    except (NotReady, OSError) as error:
        return str(error)
    return ""
