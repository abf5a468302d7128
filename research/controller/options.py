"""What is asked of a study: options of the command line and of Prefect's form, the request they make, and resuming."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import typer
from pydantic import BaseModel, ConfigDict, Field

from research.controller.mirror import WandbMirror
from research.controller.session import PLANNER_OPTIONS, StudyRequest, capacity_for, require_here
from research.controller.wandb import OnlineLogging, wandb_login
from research.design import comparison as comparisons
from research.design.comparison import DEFAULT_POWER, DEFAULT_REPAIRS, LEAST_EPISODES, MOST_ANALYSES, MOST_EPISODES
from research.design.pricing import Estimates
from research.environments.catalog import HOW, find_entry_points, requirements_of
from research.environments.install import load_environment
from research.errors import BadEnvironment, BadInput, BadTopic
from research.files import load_table
from research.installation import base_job as jobs
from research.installation.home import Home
from research.installation.machine import Capacity, read_budget
from research.installation.servers import TOKEN, parse_servers, require_servers
from research.installation.tiny_model import Note
from research.isolation.mode import Isolation, reopen, supervise
from research.models.fetch import check_loader, fetch_named
from research.planners.context import Planner, field_specs, known_environments
from research.planners.factory import BUILT_IN, make_planner, planner_names
from research.planners.lexicon import find_environment, name_environments
from research.planners.llm import PlannerOptions
from research.planners.memory import read_papers
from research.planners.rules import RulesPlanner, require_plannable
from research.planners.topic import describe_left, judge_by, parse_topic, refuse_left
from research.proposals.arms import ComparedModels, value_text
from research.proposals.flags import Claim, ParsedTopic, RequestedComparison, list_model_folders, resolve_topic
from research.proposals.metric_choice import MetricChoice, RequestedMetric
from research.runs.launcher import SERVERS
from research.scheduler.approvals import ApprovalMode, parse_mode
from research.scheduler.required_runs import is_complete
from research.text import format_seconds, is_duration
from studies import EventLog, StudyState
from studies.records.alpha import MOST_ROUNDS
from studies.records.design import MOST_REPAIRS
from studies.records.statements import model_name
from swarm.environments.custom import MARK, is_custom
from swarm.environments.registry import WordsAndSums, environments
from swarm.job import KNOB, Job, PathModel

Detach = Annotated[
    bool, typer.Option("--detach", help="Hand it to this machine's worker (`ajet up --work`) and return.")
]
_OPTIONS: Mapping[str, Any] = load_table(__package__, "options.toml")
DEFAULT_BUDGET: str = _OPTIONS["budget"]["show_default"]
LEAST_RUNS = 4
OF_A_MODEL: Mapping[str, Any] = {"effect": 0.2, "rounds": 1, "budget": "45m"}
"""How the question is asked that goes with a model: one verdict, also where the machine has much else to do."""
_PACKAGED_PLANNERS = "".join(f", `{name}` (of a package)" for name in planner_names() if name not in BUILT_IN) + "."
_DEFAULT_OF_POWER = f"{DEFAULT_POWER:g}, or what the budget carries"
_FLAGS = {"held": "--set", "shape": "--as", "model_path": "--model"}
"""Options that are not called as their field is."""
_FULL_NAME = re.compile(rf"(?<![\w.{MARK}-])([a-z0-9][a-z0-9._-]*){MARK}[\w.-]*\w", re.IGNORECASE)
AskUser = Callable[[ParsedTopic, str], bool]
"""Asks whoever sits at a terminal whether what was understood of a topic, as a command says it, is what they mean."""
_CLAIMS: Mapping[Claim | None, str] = {"increase": "what is tried is better", "decrease": "what is tried is worse"}


def _option(name: str, more: str = "", form: Mapping[str, Any] = {}, **shown: Any) -> tuple[Any, Any]:
    """Return what `options.toml` has of an option, for the command line and the form; `more` ends its help."""
    told = {"flags": (), "form": {}, **_OPTIONS[name], **shown}
    help, flags, extra = told.pop("help") + more, told.pop("flags"), {**told.pop("form"), **form}
    return typer.Option(*flags, help=help, **told), Field(description=help, json_schema_extra=extra)


def _between(least: int, most: int) -> dict[str, int]:
    return {"minimum": least, "maximum": most}


class StudyOptions(BaseModel):
    """What is to be studied. Bounds in a field's schema are the form's; who reads a value refuses it with a reason
    (`make_request`)."""

    model_config = ConfigDict(extra="forbid")

    topic: Annotated[
        str | None, typer.Argument(help="The question, in plain words.", show_default=False),
        Field(description="The question, such as: group size 4 vs 8 on guess", pattern=r"^[^\x00]*$"),
    ] = None  # fmt: skip
    vary: Annotated[list[str], *_option("vary")] = []
    shape: Annotated[str | None, *_option("shape")] = None
    held: Annotated[list[str], *_option("held")] = []
    mediator: Annotated[list[str], *_option("mediator")] = []
    evaluate: Annotated[str, *_option("evaluate")] = "control"
    env: Annotated[str | None, *_option("env")] = None
    reward: Annotated[str | None, *_option("reward")] = None
    job: Annotated[Path | None, *_option("job")] = None
    model_path: Annotated[str | None, *_option("model_path")] = None
    backend: Annotated[str | None, *_option("backend")] = None
    server: Annotated[str | None, *_option("server")] = None
    parallel: Annotated[int | None, *_option("parallel")] = None
    planner: Annotated[str, *_option("planner", _PACKAGED_PLANNERS, {"enum": list(planner_names())})] = "rules"
    planner_model: Annotated[str | None, *_option("planner_model")] = None
    budget: Annotated[str | None, *_option("budget")] = None
    max_runs: Annotated[int | None, *_option("max_runs", form={"minimum": LEAST_RUNS}, min=LEAST_RUNS)] = None
    metric: Annotated[list[str], *_option("metric")] = []
    effect: Annotated[float | None, *_option("effect")] = None
    power: Annotated[float | None, *_option("power", show_default=_DEFAULT_OF_POWER)] = None
    looks: Annotated[int, *_option("looks", form=_between(1, MOST_ANALYSES))] = comparisons.DEFAULT_ANALYSES
    repairs: Annotated[int, *_option("repairs", form=_between(0, MOST_REPAIRS))] = DEFAULT_REPAIRS
    rounds: Annotated[int | None, *_option("rounds", form=_between(1, MOST_ROUNDS))] = None
    episodes: Annotated[int | None, *_option("episodes", form=_between(LEAST_EPISODES, MOST_EPISODES))] = None
    read: Annotated[Path | None, *_option("read")] = None
    extend_to: Annotated[int | None, *_option("extend_to")] = None
    explore: Annotated[bool, *_option("explore")] = False
    approve: Annotated[str, *_option("approve", form={"enum": list(get_args(ApprovalMode))})] = "none"
    sandbox: Annotated[str | None, *_option("sandbox", form={"enum": ["docker", "process", None]})] = None


class ResearchOptions(PlannerOptions, StudyOptions):
    """Options of `ajet research` and `ajet study plan`, and the fields of Prefect's form."""

    @property
    def planner_options(self) -> dict[str, Any]:
        return self.model_dump(include=set(PlannerOptions.model_fields), exclude_none=True)

    def with_fetched_model(self, note: Note) -> Self:
        """Return what is asked, once a model called by its name is here (ModelFailed); its own question for none."""
        model = fetch_named(self.model_path, Home.locate().models, note)
        if model is None or self.vary or (self.topic or "").strip() or self.env not in (None, WordsAndSums.name):
            return self
        own = {name: value for name, value in OF_A_MODEL.items() if getattr(self, name) is None}
        said = " ".join(f"--{name} {value}" for name, value in own.items())
        note(f"nobody asked a question; {model.name} has one of its own, which is studied {said}: {model.question}")
        return self.model_copy(update={"topic": model.question, **own})

    def command(self) -> tuple[str, ...]:
        given = self.model_dump(mode="json", exclude_defaults=True)
        topic = given.pop("topic", None)
        if given.get("shape") == "apart":  # as without
            del given["shape"]
        flags = (
            (_FLAGS.get(name, f"--{name.replace('_', '-')}"), *([] if each is True else [str(each)]))
            for name, value in given.items()
            for each in (value if isinstance(value, list) else [value])
        )
        return ("research", *([topic] if topic else []), *(word for flag in flags for word in flag))

    def command_of(self, parsed: ParsedTopic, wanted: RequestedComparison, verb: str = "research") -> str:
        """Return the command that asks for what was understood of the topic, with all else that is asked here."""
        return f"ajet {verb} {shlex.join(self.restate(parsed, wanted).command()[1:])}"

    def restate(self, parsed: ParsedTopic, wanted: RequestedComparison) -> Self:
        """Return the options that ask for what was understood of the topic, by flags where they can say it."""
        changed: dict[str, Any] = {"topic": parsed.plain_topic}
        if parsed.metric is not None:
            changed["metric"] = [parsed.metric.text]
        if parsed.plain_topic is None:
            changed["vary"] = replace(wanted, vary=parsed.vary).list_varied()
            changed["held"] = [f"{name}={value_text(value)}" for name, value in parsed.held.items()]
            changed["env"] = self.env or parsed.environment
        return self.model_copy(update=changed)


def make_mirror(
    home: Home, begun: StudyState, say: Callable[[str], None], warn: Callable[[str], None]
) -> WandbMirror | None:
    """Return what sends copies of a study's logs to W&B; None where it began without, or nobody is logged in now."""
    login, record = wandb_login(os.environ), begun.settings.get("wandb")
    if record is None:
        if os.environ.get("WANDB_MODE") == "online":
            warn(f"nothing is sent to W&B: {'the study began without' if login.online else login.why}")
        return None
    online = OnlineLogging.model_validate(record)
    if login.online is None or login.online.base_url != online.base_url:
        why = login.why if login.online is None else f"W&B's server is {login.online.server} now"
        warn(f"the study sends its logs to W&B at {online.server}; {why}. They are kept here, and sent once it goes on "
             "logged in there")  # fmt: skip
        return None
    return WandbMirror(home, begun.id, online, say, warn)


def reopen_planner(home: Home, log: EventLog, state: StudyState, caps: Mapping[str, float] = {}) -> Planner:
    """Return the planner of a study that can go on here, with `caps`; raise NotReady or what its backend or planner
    lacks, BadInput for caps that are not larger than its own."""
    options = state.settings.get(PLANNER_OPTIONS, {})
    for name, most in caps.items():
        if (before := options.get(name)) is None or most <= before:
            cap = f"a larger cap than study {state.id} has ({'none' if before is None else f'{before:,}'})"
            raise BadInput(f"expected of --{name.replace('_', '-')} {cap}; found {most:,}; raise it, or leave it out")
    require_here(home, log, state)
    if (servers := state.settings.get(SERVERS)) and os.environ.get(TOKEN) and not is_complete(state):
        require_servers(home, servers, now=False)  # a new key may be given
    if not is_complete(state) and not state.settings.get(SERVERS):
        jobs.require_backend(jobs.backend_of(state))
    return make_planner(state.planner["name"], state.planner["model"], os.environ, {**options, **caps})


def reopen_isolation(home: Home, state: StudyState, note: Note) -> Isolation:
    """Return where a study's runs go on; what is left of one whose runs are over is judging, which needs no engine."""
    if is_complete(state):
        return supervise(state.settings, os.environ, home)
    brought = RequestedComparison.of(state.settings).custom_environments
    return reopen(state.settings, os.environ, home, note, lambda: requirements_of(brought))


def make_request(asked: ResearchOptions, note: Note) -> StudyRequest:
    """Return the request that options make; raise BadInput, BadTopic, BadEnvironment, DesignRefused, InvalidRequest."""
    approve, topic = parse_mode(asked.approve), asked.topic or ""
    metric = RequestedMetric.parse_flags(asked.metric)
    by_rules = bool(topic.strip()) and asked.planner == RulesPlanner.name
    effect = None if by_rules and metric is None else asked.effect  # whose range is known once the topic is read
    power = DEFAULT_POWER if asked.power is None else asked.power
    requirements = comparisons.StatisticalRequirements(
        effect, power, asked.looks, asked.episodes, metric, asked.rounds, asked.repairs, asked.power is not None,
        asked.extend_to,
    )  # fmt: skip
    hashes = Home.locate().models
    base = jobs.base_job(asked.job, asked.model_path, hashes, asked.backend)
    models = ComparedModels.load(list_model_folders(asked.vary), lambda said: jobs.model_folder(said, hashes))
    shape = None if asked.shape == "apart" else asked.shape
    if asked.env is not None and asked.env not in environments() and KNOB in " ".join(asked.vary + asked.held):
        load_environment(asked.env, asked.reward, Home.locate().prepare(), note)  # whose knobs are named
    comparison = RequestedComparison.parse(asked.vary, asked.held, base, models, shape, asked.mediator, asked.evaluate)
    resolve_topic(asked.topic, comparison)
    if asked.max_runs is not None and asked.max_runs < LEAST_RUNS:
        raise BadInput(f"--max-runs: expected at least {LEAST_RUNS}; found {asked.max_runs}")
    fixed = {} if base is None else jobs.find_fixed_fields(base)
    if asked.env is not None:
        jobs.require_agreement(base, {"environment": [asked.env]})
    environment = fixed.get("environment") if asked.env is None else asked.env
    comparison = _set_environment(comparison, topic, environment, asked.reward, note)
    pretrained = base is not None and isinstance(base.model, PathModel)
    if pretrained and asked.planner == RulesPlanner.name and not (comparison.environment or name_environments(topic)):
        comparison = replace(comparison, environment=WordsAndSums.name)
        note(f"no environment is named; a pretrained model plays {WordsAndSums.name} ({WordsAndSums.title}) then")
    if base is not None and comparison.environment is not None and "environment" in fixed:
        base = base.model_copy(update={"environment": comparison.environment})
    base = base and jobs.fit_to_environment(base, find_environment(topic, comparison))
    parsed = None
    if by_rules:
        model = model_name(base.model.model_dump()) if base is not None and "model" in fixed else ""
        played = find_environment(topic, comparison)
        parsed = parse_topic(topic, field_specs(base, models, played), known_environments(), comparison, model)
        parsed = judge_by(parsed, requirements.metric or parsed.metric)
        requirements = replace(requirements, metric=requirements.metric or parsed.metric, effect=asked.effect)
    if asked.read is not None and asked.planner == RulesPlanner.name:
        raise BadInput("expected --read beside a planner that reads (--planner llm); found the rules; leave it out")
    if asked.explore:
        _require_explorable(asked, comparison, parsed)
    if requirements.metric is not None:
        played = (parsed and parsed.environment) or find_environment(topic, comparison)
        job = (base or Job()).model_copy(update={"environment": played})
        MetricChoice(requirements.metric, Estimates().training).metric((job,), requirements.hidden_episodes)
    question = resolve_topic(asked.topic, comparison)
    if comparison.vary and requirements.metric is not None:
        question = f"{question} --metric {requirements.metric.text}"
    question += f" --extend-to {asked.extend_to}" if comparison.vary and asked.extend_to is not None else ""
    servers = () if asked.server is None else parse_servers(asked.server)
    if (brought := comparison.custom_environments) and servers and not pretrained:
        raise BadInput(
            f"expected an environment that the servers know, or a --model; found {brought[0]}, which was brought here: "
            "where a tiny model is made, its server has to play it; leave --server out, or name a --model"
        )
    request = StudyRequest(
        question, asked.planner, asked.planner_model, 0.0, asked.max_runs, requirements=requirements,
        requested=comparison, parsed=parsed, base=base, approve=approve, explore=asked.explore,
        planner_options=asked.planner_options,
        papers={} if asked.read is None else read_papers(asked.read, note),
        servers=servers, parallel=asked.parallel,
    )  # fmt: skip
    if asked.parallel is not None and asked.parallel < 1:
        raise BadInput(f"--parallel: expected at least 1; found {asked.parallel}")
    return _set_budget(request, asked.budget or DEFAULT_BUDGET, capacity_for(request, check_loader(hashes)), note)


def _set_budget(request: StudyRequest, budget: str, on: Capacity, note: Note) -> StudyRequest:
    if on.runs < (request.parallel or 1):
        note(f"--parallel {request.parallel} is more than is carried; {on.describe()}")
    seconds = read_budget(Home.locate(), budget, on)
    if not is_duration(budget):
        note(f"--budget {budget} is {format_seconds(seconds)} of {on.describe()}")
    return replace(request, budget_s=seconds)


def _require_explorable(asked: ResearchOptions, wanted: RequestedComparison, parsed: ParsedTopic | None) -> None:
    alone = {"rounds": (asked.rounds or 1) > 1, "extend-to": asked.extend_to, "mediator": asked.mediator}
    if other := next((flag for flag, given in alone.items() if given), None):
        why = "as each arm has one run and nothing is tested"
        raise BadInput(f"expected --explore without --{other}, {why}; found both; leave one of the two out")
    if parsed is not None and parsed.confirm:
        most = 2 if len(parsed.vary) > 1 else 4  # a design has four arms
        some = {name: tuple(values)[:most] for name, values in parsed.vary.items()}
        named = parsed.model_copy(update={"vary": some, "confirm": 0})
        raise BadInput(
            "expected settings that are compared, the control first, to explore; found a search for the best; name "
            f"them: {asked.command_of(named, wanted)}"
        )


def _set_environment(
    comparison: RequestedComparison, topic: str, environment: str | None, reward: str | None, note: Note
) -> RequestedComparison:
    if environment is None and reward is not None:
        raise BadEnvironment("expected --reward beside --env TASKS.jsonl; found it alone; name the tasks it judges")
    home = Home.locate()
    named = _find_named_environments(topic, home, short=environment is None)
    if environment is None and not named:
        return comparison
    home = home if environment in environments() else home.prepare()
    brought = [load_environment(name, None, home, note).name for name in named]
    asked = load_environment(environment, reward, home, note).name if environment is not None else None
    known = dict.fromkeys(name for name in (asked, *brought) if name is not None and is_custom(name))
    return replace(comparison, environment=asked, custom_environments=tuple(known))


def _find_named_environments(topic: str, home: Home, *, short: bool) -> list[str]:
    known: dict[str, list[str]] = {}
    for folder in sorted(home.environments.glob(f"[!.]*{MARK}*")):
        known.setdefault(folder.name.partition(MARK)[0], []).append(folder.name)
    named: list[str] = []

    def take(match: re.Match[str]) -> str:
        full, name = match[0].lower(), match[1].lower()
        if not is_custom(full) and name not in known:
            return match[0]  # such as pass@8
        if full not in (several := known.get(name, [])):
            there = f"of this name there is {' and '.join(several)}; " if several else ""
            raise BadEnvironment(f"expected an environment that was brought here; found no {full}; {there}{HOW}")
        named.append(full)
        return " "

    def mentions(name: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", rest, re.IGNORECASE) is not None

    rest = _FULL_NAME.sub(take, topic)
    taken = {name.partition(MARK)[0] for name in named} | environments().keys()
    named += filter(mentions, find_entry_points())
    for name, several in known.items() if short else ():
        if name in taken or not mentions(name):
            continue
        if len(several) > 1:
            raise BadEnvironment(
                f"expected one environment called {name}; found {', '.join(several)}; name the one you mean: "
                f"--env {several[-1]}"
            )
        named.append(several[0])
    return list(dict.fromkeys(named))


def select_planner(request: StudyRequest, note: Note) -> Planner:
    """Return the planner that is asked for; raise BadTopic or BadInput for flags that do not go with it."""
    if request.requested.vary and request.planner != RulesPlanner.name:
        raise BadTopic(
            f"expected --vary without a planner, as it leaves nothing to plan; found --planner {request.planner}; "
            "leave it out"
        )
    if request.requested.mediators and request.planner != RulesPlanner.name:
        raise BadTopic(f"expected --mediator without --planner {request.planner}, which names its own; leave one out")
    if request.planner_options and request.planner != "llm":
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in request.planner_options)
        raise BadInput(
            f"expected {flags} beside --planner llm, which asks a language model; found the planner {request.planner}; "
            "leave it out"
        )
    return make_planner(request.planner, request.model, os.environ, request.planner_options, note=note)


def ask_on_terminal(parsed: ParsedTopic, command: str) -> bool:
    """Return whether a person at the terminal says that what was understood is to be studied; False where none is."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    typer.echo(f"understood      {command}", err=True)
    if parsed.claim is not None or parsed.equivalence:
        typer.echo(f"said of it      {'no difference' if parsed.equivalence else _CLAIMS[parsed.claim]}", err=True)
    typer.echo(f"not understood  {describe_left(parsed)}", err=True)
    return typer.confirm("Study this?", default=False, err=True)


def require_understood(
    request: StudyRequest, ask: AskUser | None = None, asked: ResearchOptions | None = None, verb: str = "research"
) -> None:
    """Refuse a question that the rules cannot plan, and a topic with words that they do not know, unless what was
    understood is to be studied. The command to paste is `ajet` with this verb, and says all else that was `asked`."""
    parsed, wanted = request.parsed, request.requested
    left = describe_left(parsed) if parsed is not None and parsed.left else ""
    try:
        require_plannable(request.topic, wanted, request.base, parsed)
    except BadTopic as error:
        if not left:
            raise
        raise BadTopic(f"{error.message}; not understood besides: {left}") from error
    if parsed is None or not left:
        return
    command = parsed.command(wanted) if asked is None else asked.command_of(parsed, wanted, verb)
    if ask is None or not ask(parsed, command):
        raise refuse_left(parsed, command, field_specs(request.base, wanted.models))


def require_planner(
    request: StudyRequest, note: Note, *, ask: AskUser | None = None, asked: ResearchOptions | None = None
) -> Planner:
    """Return the planner of a study on this request; refuse what no study could answer, before anything is begun."""
    chosen = select_planner(request, note)
    if isinstance(chosen, RulesPlanner):
        if re.search(r"\bhow many (?:seeds|runs)\b", request.topic, re.IGNORECASE):
            raise BadTopic(
                f"expected a question that training runs answer; found {request.topic!r}, which a table answers; see "
                f"it with: ajet study plan {shlex.quote(request.topic)}"
            )
        require_understood(request, ask, asked)
    if not request.servers:
        jobs.require_backend((request.base or Job()).backend)
    return chosen
