"""One controller's work on one study, from creating or taking it up to its end.

A study is driven by one controller, on whichever host, with its lease in the event log's database, and from the
installation where its evidence lies, or any other that shares its files. Everything that must survive is in the event
log and those; a session holds only what a process needs while it lives.
"""

import re
import secrets
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from types import FrameType
from typing import Any, Final

from research.controller.built_designs import build_reproduction
from research.controller.controller import INTERRUPTED, Observer, StudyController, drive
from research.controller.mirror import WandbMirror
from research.controller.wandb import OnlineLogging
from research.design.comparison import StatisticalRequirements
from research.design.pricing import KnownCheck, runs_at_once
from research.environments.catalog import find_custom_environments
from research.errors import BadEnvironment, BadInput, BadTopic, DesignRefused, NotReady, PlannerFailed, ResearchError
from research.files import write_bytes
from research.installation.base_job import base_job_of, base_settings, require_backend, require_job, require_unchanged
from research.installation.home import Home, home_error
from research.installation.machine import Capacity, describe, read_budget
from research.installation.servers import require_servers
from research.installation.studies import RESULTS_VERSION, VERSION_KEY
from research.installation.tiny_model import Note
from research.isolation.mode import PROCESS, UNISOLATED, Isolation, Sandboxing, require_isolation
from research.models.fetch import check_loader
from research.planners.context import Planner
from research.planners.rules import RulesPlanner
from research.proposals.flags import ParsedTopic, RequestedComparison
from research.runs.launcher import SERVERS
from research.scheduler.approvals import MODE, ApprovalMode
from research.scheduler.required_runs import attempts_running
from sandboxes import ProcessSandbox
from studies import ControllerLeaseLost, EventLog, EventType, StoreError, StudyLog, StudyState
from studies.log.fold import SERVED, WORKED
from studies.log.locks import ControllerLease, ControllerLeases, Holder, renew_in_background
from studies.log.study import EXPLORE, PAPERS
from studies.records.design import MODEL, is_expression
from studies.records.verdict import REPRODUCES, Reproduction
from swarm.environments.judges import NO_CONTAINER
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel

Interruption = Callable[[], str | None]
"""Returns why an interrupt (Ctrl-C, SIGTERM) stops the study; None where it is left, for another controller."""
_PACKAGES = ("ajet", "torch", "transformers", "fastapi", "openai", "prefect", "wandb", "scipy", "sqlalchemy")

PLANNER_OPTIONS: Final = "planner_options"
"""Setting of a study: the options of its language model."""

"""Setting of a study: the claim of another one on which it is to give more evidence."""
_FILLER = {"does", "the", "and", "make", "for", "with", "how", "what", "which", "than", "can", "will", "should", "grpo"}


@contextmanager
def hold_lease(home: Home, log: EventLog, study: str, note: Note) -> Iterator[ControllerLease]:
    """Hold a study's lease, with its files as others left them; raises LeaseHeld, naming the other. `note` is told of
    waiting for a dead controller."""
    with renew_in_background(ControllerLeases(log).take(study, Holder.here(home.path), note)) as lease:
        home.files.pull(log, study)
        yield lease


def has_controller(home: Home, log: EventLog, study: str, *, local: bool = False) -> bool:
    """Return whether a controller works on a study; one of another host counts as alive unless `local`."""
    row = ControllerLeases(log).read(study)
    if row is None or row.given_back:
        return False
    return not row.holder.is_gone() if row.holder.shares_host(Holder.here(home.path)) else not local


def require_here(home: Home, log: EventLog, state: StudyState) -> None:
    """Fetch what others share of a study; raise NotReady unless what it has made lies in this installation."""
    home.files.pull(log, state.id)
    begun = state.explorations or state.hypotheses or state.noise_plan is not None or state.design is not None
    folder, runs = home.study(state.id), state.every_run.values()
    whole = all((folder / "runs" / run.run_id).is_dir() for run in runs if run.collected is not None)
    if not begun or (folder.is_dir() and (whole or not home.files.url)):
        return
    row = ControllerLeases(log).read(state.id)
    where = "another one" if row is None else f"{row.holder.home} on {row.holder.host}"
    raise NotReady(
        f"expected the folder of study {state.id}, with its runs and evidence, in {home.path}; it is in {where}. "
        "Go on with it there, share its files (AJET_FILES), or bring its folder here once no run of it goes on there"
    )


def require_files(home: Home, log: EventLog, study: str) -> None:
    """Fetch what others share of a study; raise NotReady where its files lie elsewhere alone, and so prove nothing."""
    home.files.pull(log, study)
    if home.study(study).is_dir() or (row := ControllerLeases(log).read(study)) is None:
        return
    holder, me = row.holder, Holder.here(home.path)
    if (holder.host, holder.home) != (me.host, me.home):
        raise NotReady(
            f"expected the files of study {study} in {home.path}; they are in {holder.home} on {holder.host}. Ask "
            "there, share its files (AJET_FILES), or bring the study's folder here"
        )


def end_leftovers(home: Home, study: str, active: Collection[str] = ()) -> None:
    """End attempts at a study that run here and are none of these: others went on without them."""
    for handle in ProcessSandbox(home.sandboxes).list():
        if handle.labels.get("study") == study and handle.name not in active and handle.poll() is None:
            handle.stop()


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """What a user asked for: what is to be studied, under which requirements, within which budget."""

    topic: str
    planner: str
    model: str | None
    budget_s: float
    max_runs: int | None
    command: Sequence[str] = ()
    sandbox: Sandboxing = PROCESS
    requirements: StatisticalRequirements = field(default_factory=StatisticalRequirements)
    requested: RequestedComparison = field(default_factory=RequestedComparison)
    """What flags ask for, in the place of a topic or beside it."""
    parsed: ParsedTopic | None = None
    """What the rules understood of the topic; None where flags ask, or another planner reads it."""
    base: Job | None = None
    """The job under all arms, as a file or a model's folder says it; None for the default."""
    approve: ApprovalMode = "none"
    """What a person is asked before it begins."""
    wandb: OnlineLogging | None = None
    """Where at W&B copies of its logs are sent; None for nowhere."""
    explore: bool = False
    """Whether one run of each arm is made, and nothing tested."""
    planner_options: Mapping[str, Any] = field(default_factory=dict)
    """How its language model is asked (`research.planners.llm.PlannerOptions`), as far as flags say it."""
    papers: Mapping[str, bytes] = field(default_factory=dict)
    """Texts that its planner may read, by name."""
    served: bool = False
    """Whether a worker works on it, and takes it up again where its controller ended."""
    servers: tuple[str, ...] = ()
    """Swarm servers elsewhere on which it trains, by address or name; none: it starts its own here."""
    parallel: int | None = None
    """Most runs at once; None for as many as fit."""
    reproduces: Reproduction | None = None
    """What of another study it puts to the test again; None for a question of its own."""


def request_reproduction(home: Home, state: StudyState, names: Sequence[str], budget: str | None) -> StudyRequest:
    """Return the request for a study that reproduces claims of another one, by default with its budget; raise BadInput
    for claims that it cannot have, InvalidRequest or NotReady where what the lock names is not here."""
    again = build_reproduction(state, names, home.models)
    design, brought = again.design, tuple(each.name for each in again.design.environments)
    base, held = require_job(design.base_job), design.base_job[MODEL]
    for model in (arm.overrides.get(MODEL, held) for arm in design.arms):
        if "path" in model and not model.get("sha256"):
            raise BadInput(f"expected models with their hash; the lock of study {state.id} has {model['path']} without")
        require_unchanged(PathModel.model_validate(model), home.models) if "path" in model else None
    require_backend(base.backend)
    request = StudyRequest(
        state.topic, RulesPlanner.name, None, state.budget_s, None, base=base, reproduces=again,
        requested=replace(RequestedComparison.of(state.settings), custom_environments=brought),
        requirements=replace(StatisticalRequirements.of(state.settings), rounds=1),
    )  # fmt: skip
    on = capacity_for(request, check_loader(home.models))
    request = replace(request, budget_s=read_budget(home, budget, on) if budget else state.budget_s)
    if request.budget_s < (least := design.price.total_s * min(1.0, design.price.parallel / on.runs)):
        raise BadInput(f"expected --budget {least + 1:.0f}s or more, for its lock; found {request.budget_s:.0f}s")
    return request


def capacity_for(request: StudyRequest, check_of: KnownCheck) -> Capacity:
    """Return how many runs of a request's study go at once, and on what."""
    job, models = request.base or Job(), request.requested.models.by_name.values()
    others = (job.model_copy(update={"model": known.model}) for known in models)
    return _capacity((job, *others), request.servers, request.parallel, check_of)


def capacity_of(state: StudyState, check_of: KnownCheck) -> Capacity:
    """Return how many runs of a study that was begun go at once here, and on what."""
    job, settings = base_job_of(state.settings) or Job(), state.settings
    return _capacity((job,), tuple(settings.get(SERVERS, ())), settings["parallel"], check_of)


def _capacity(jobs: Iterable[Job], servers: tuple[str, ...], most: int | None, check_of: KnownCheck) -> Capacity:
    """Return as many as fit, at most as many as are asked for."""
    fits = Capacity(len(servers), servers) if servers else runs_at_once(jobs, check_of)
    return replace(fits, runs=min(fits.runs, most or fits.runs))


def new_study_id(topic: str, token: str | None = None) -> str:
    """Return an id that starts with words of the topic, fit for file names and Prefect keys; fresh without a token."""
    words = [word for word in re.findall(r"[a-z0-9]+", topic.lower()) if len(word) > 2 and word not in _FILLER]
    return "-".join([*(words[:3] or ["study"]), token or secrets.token_hex(2 if words else 3)])


def create_study(
    log: EventLog, study: str, request: StudyRequest, check_of: KnownCheck = lambda job: None,
    record: StudyLog | None = None,
) -> None:  # fmt: skip
    """Append `study.created`; `check_of` knows what a model of the study was seen to take."""
    slots = capacity_for(request, check_of).runs
    payload = {
        "topic": request.topic,
        "planner": {"name": request.planner, "model": request.model},
        "settings": {
            "budget_s": request.budget_s, "max_runs": request.max_runs, "parallel": slots,
            MODE: request.approve, "sandbox": request.sandbox.model_dump(mode="json"),
            **request.requirements.settings(), **request.requested.settings(), **base_settings(request.base),
            **({} if request.parsed is None else request.parsed.settings()),
            **({EXPLORE: True} if request.explore else {}),
            **({SERVERS: list(request.servers)} if request.servers else {}),
            **({REPRODUCES: request.reproduces.model_dump(mode="json")} if request.reproduces else {}),
            **({PLANNER_OPTIONS: dict(request.planner_options)} if request.planner_options else {}),
            **({PAPERS: {name: sha256(text).hexdigest() for name, text in request.papers.items()}}
               if request.papers else {}),
            **({} if request.wandb is None else {"wandb": request.wandb.model_dump(mode="json")}),
        },
        "command": ["ajet", *request.command], "versions": collect_versions(), "machine": describe(), WORKED: 0.0,
        **({SERVED: True} if request.served else {}),
    }  # fmt: skip
    (record or StudyLog(log, study)).append(EventType.STUDY_CREATED, payload, actor="user")


def begin_study(home: Home, log: EventLog, study: str, request: StudyRequest) -> None:
    """Append `study.created`, after its folder is made, while its environments are there and cannot be removed."""
    require_servers(home, request.servers)
    if request.reproduces and not all(map(is_expression, request.reproduces.design.code.values())):
        require_isolation(request.sandbox, f"the code of study {request.reproduces.study}")
    with home.creation_lock():
        for brought in find_custom_environments(request.requested.custom_environments):
            brought.require_unchanged()
            source = brought.manifest.source
            if (source.kind, source.place) == ("judge", "tests"):
                require_isolation(request.sandbox, f"answers that --reward tests judges ({NO_CONTAINER})")
        folder = home.study(study)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in request.papers.items():
                write_bytes(folder / PAPERS / name, text)
        except OSError as error:
            raise home_error(folder, error) from error
        record = StudyLog(log, study, store=home.files.push)
        create_study(log, study, request, check_loader(home.models), record)


def begin_served(
    home: Home, log: EventLog, request: StudyRequest, give: Callable[[str], str], note: Note
) -> tuple[str, str]:
    """Begin a study and hand it to the worker by `give` (`find_worker`); return its id, and what that returned."""
    study = new_study_id(request.topic)
    with hold_lease(home, log, study, note):  # so that it is this installation's, whatever becomes of its flow run
        begin_study(home, log, study, replace(request, served=True))
    return study, give(study)


def collect_versions() -> dict[str, str]:
    found = {VERSION_KEY: str(RESULTS_VERSION), "python": python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


class Session:
    """Drives one study. The caller is its controller (`research.controller.session`) as long as the session lives."""

    def __init__(
        self, home: Home, log: EventLog, study: str, planner: Planner, isolation: Isolation = UNISOLATED,
        check: Callable[[], None] = lambda: None, mirror: WandbMirror | None = None,
        interruption: Interruption = lambda: INTERRUPTED,
    ) -> None:  # fmt: skip
        """`check` raises ControllerLeaseLost once another controller may drive the study; `mirror` tells of W&B."""
        self._interruption = interruption
        self._home, self._log = home, log
        self._study = study
        self._observers: list[Observer] = []
        self._folder = home.study(study)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._controller = StudyController(
            home=home, log=log, study=study, planner=planner, sandbox=ProcessSandbox(home.sandboxes),
            isolation=isolation, note=self._note, check=check, mirror=mirror,
        )  # fmt: skip
        if home.files.url:
            running = attempts_running(self._controller.state())
            end_leftovers(home, study, [run.active.name for run in running if run.active is not None])

    def plan(self) -> StudyState:
        """Lock a design unless there is one; an error or an interrupt stops the study."""
        with self._stop_on(ResearchError, InvalidRequest), raise_on_sigterm():
            try:
                return self._controller.plan()
            except KeyboardInterrupt:
                if (reason := self._interruption()) is None:
                    raise
                self._controller.halt(reason, "user")
                return self._controller.state()

    def run(self, observer: Observer) -> StudyState:
        """Drive the study until it is concluded or stopped; the first interrupt ends it cleanly, a second at once."""
        self._observers.append(observer)
        # A design is compiled after its first run too, and may be refused then; a model may change meanwhile.
        with catch_interrupts() as interrupted, self._stop_on(BadTopic, DesignRefused, PlannerFailed):
            try:
                return drive(self._controller, self._observers, interrupted, interruption=self._interruption)
            except (BadEnvironment, InvalidRequest) as error:  # what trains now may train what nobody named
                self._controller.stop(error.message, "system")
                raise

    @contextmanager
    def _stop_on(self, *errors: type[ResearchError | InvalidRequest]) -> Iterator[None]:
        try:
            yield
        except errors as error:
            self._controller.halt(error.message)
            raise
        except ControllerLeaseLost:
            with suppress(StoreError):
                row, me = ControllerLeases(self._log).read(self._study), Holder.here(self._home.path)
                if row is not None and (row.holder.host, row.holder.home) != (me.host, me.home):
                    self._home.files.forget(self._study)
                    end_leftovers(self._home, self._study)
            raise

    def _note(self, line: str) -> None:
        for observer in self._observers:
            observer.note(line)


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def catch_interrupts() -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into a set event; the second acts as it would have."""
    event = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, note)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
