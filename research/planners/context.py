"""The planner's seam: all that it is shown in, one typed action out.

It is rebuilt from the study before every turn, as a planner has no memory of its own, and holds facts only. Words of
people and programs are quoted: they steer what is proposed, and no number in them is a result.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Final, Literal, Protocol

from research.design.known_findings import KnownFinding, list_effects
from research.errors import DesignRefused
from research.installation.base_job import find_fixed_fields
from research.planners.history import CampaignFacts, Notebook, QuotedText, sanitize_line
from research.planners.looks import describe_environment
from research.planners.tools import PLAYS, StudyTools
from research.proposals.actions import DEFAULT_EFFECT, Action, Propose, Replicate, SideAction
from research.proposals.arms import NO_MODELS, ComparedModels, Scalar, knobs, value_text
from research.proposals.flags import ParsedTopic, RequestedComparison
from research.proposals.metric_choice import RequestedMetric, flag_syntax
from research.proposals.slots import SLOTS, does_as_written
from studies.metrics import kinds
from studies.records.design import KNOB, MODEL, Design, Hypothesis, Metric
from studies.records.procedure import Noise
from studies.records.statements import metric_name
from studies.records.verdict import MADE, Verdict
from studies.report.answer import AnswerFacts
from swarm.environments.base import Environment
from swarm.environments.registry import environments
from swarm.errors import InvalidRequest
from swarm.job import Job, TinyModel, default_learning_rate, tunables

NO_CODE_NOW: Final = "plays of hidden tasks were looked at, and code could hold their answers"
SUCCESS_ALONE: Final = Metric(meaning="share of hidden tasks solved after the last step", episodes=1)
Stage = Literal["propose", "design", "look", "repair", "conclude", "review"]
_EFFECTS_SHOWN: Final = 6
_SHOWN_OF_VERDICT = {
    "hypothesis", "verdict", "reason", "estimate", "p", "n_control", "n_treatment", "phase", "mediators",
}  # fmt: skip
"""Without an interval: the one that decided is among the references."""

Check = Callable[[Action], DesignRefused | None]
"""Returns why an action would be refused, in one line for a person and one for a planner; None when it is taken."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A look and what it was answered, word for word."""

    name: str
    arguments: Mapping[str, Any]
    answer: str
    split: str = ""
    """Of which tasks the plays are that it showed; empty where it showed none."""
    made: Mapping[str, Any] | None = None
    """What an analysis made; None of any other look, and where it made nothing."""

    def payload(self) -> dict[str, Any]:
        """Return it as the event of its turn counts it: with hash and size of the answer, in characters."""
        sha256, characters = hashlib.sha256(self.answer.encode()).hexdigest(), len(self.answer)
        shown = {"name": self.name, "arguments": dict(self.arguments), "sha256": sha256, "characters": characters}
        shown |= {"split": self.split} if self.name == PLAYS else {}
        return shown if self.made is None else {**shown, MADE: dict(self.made)}


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A job field that can be varied."""

    name: str
    default: Scalar
    """The rung of the ladder that the job's default is, or amounts to."""
    ladder: tuple[Scalar, ...]
    synonyms: tuple[str, ...]
    description: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    apart: bool = False
    """The lowest rung switches off what the others are amounts of."""
    given: bool = False
    """Whether the user's job has it at a value of its own, which is the default then."""

    @property
    def is_categorical(self) -> bool:
        return isinstance(self.default, str)


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """What is measured of an arm so far; only runs that feed claims."""

    name: str
    n: int
    mean: float | None = None
    """Mean of the metric; None without runs."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval of the mean; None with fewer than two runs."""


def field_specs(base: Job | None = None, models: ComparedModels = NO_MODELS, where: str = "") -> tuple[FieldSpec, ...]:
    """Return the fields a study may vary: defaults are those of `base`, knobs those of the environment `where`."""
    fixed, job, specs = {} if base is None else find_fixed_fields(base), base or Job(), []
    for name, mark in tunables().items():
        own, ladder, description = getattr(job, name), mark.ladder, Job.model_fields[name].description or ""
        default = mark.usual if own is None else own
        if name == "learning_rate":  # rungs are of the tiny model: as far around what is usual for this one
            times = default_learning_rate(job.model, job.lora_rank) / default_learning_rate(TinyModel(), 0)
            ladder = tuple(float(f"{rung * times:.3g}") for rung in ladder)
        if default not in ladder:  # a value of a user's own stands among the others by its size
            ladder = tuple(sorted((*ladder, default)))
        given = name in fixed
        specs.append(FieldSpec(name, default, ladder, mark.synonyms, description, mark.values, mark.apart, given))
    for name, knob in knobs(where or job.environment).items():
        own = fixed.get(name, knob.default)
        rungs = knob.values if own in knob.values else tuple(sorted((*knob.values, own)))
        does = f"{sanitize_line(knob.does)} {knob.describe()}."
        words = knob.synonyms or (name.removeprefix(KNOB).replace("_", " "),)
        specs.append(FieldSpec(name, own, rungs, words, does, apart=not rungs[0], given=name in fixed))
    if names := tuple(models.by_name):
        about = (
            "The model that training begins with. Runs are then judged by what they gain over their own beginning, and "
            "nothing else may be varied beside it."
        )
        specs.append(FieldSpec(MODEL, names[0], names, ("model", "language model"), about))
    return tuple(specs)


def known_environments() -> tuple[Environment, ...]:
    return tuple(environments().values())


@dataclass(frozen=True, slots=True)
class Briefing:
    """What a study asks, and what came of it: for a planner, and for whoever judges what it does."""

    topic: str
    _: KW_ONLY
    wanted: RequestedComparison = field(default_factory=RequestedComparison)
    """What flags ask for, in the place of a topic or beside it."""
    parsed: ParsedTopic | None = None
    """What the rules understood of the topic when the study began; None where nobody parsed it."""
    code_allowed: bool = False
    """Whether the study's runs are in containers, so that a reward function may be proposed."""
    notes: Sequence[QuotedText] = ()
    """Notes that people left in the study."""
    campaign: CampaignFacts | None = None
    """What the rounds before found; None in the first."""
    notebook: Notebook | None = None
    """What the planner wrote down in earlier turns; None where it can write nothing down."""
    explorations: Sequence[Mapping[str, Any]] = ()
    """What was tried without a claim, the newest last, as JSON values."""
    explored: int | None = None
    """Explorations before the question that is due; None where none can be made."""
    findings: Sequence[QuotedText] = ()
    """What earlier studies here found about the topic."""
    tokens_spent: Mapping[str, float] = field(default_factory=dict)
    """Tokens that language models read (`prompt`) and wrote (`completion`) for the study so far."""
    known: Sequence[KnownFinding] = ()
    """All that was found here with the study's model, in earlier rounds too."""
    plays_seen: bool = False
    """Whether a planner looked at plays of hidden tasks: then no reward function may be written any more."""


@dataclass(frozen=True, slots=True)
class PlannerContext(Briefing):
    """The study as a planner sees it."""

    seconds_left: float
    seconds_per_run: float
    """Estimated seconds of one run of the default job, in the environment that is asked for."""
    parallel: int
    max_runs: int | None = None
    """Most runs the study may make; None: as many as time affords."""
    extend_to: int | None = None
    """Steps to which the study's own flag has runs made longer where they rise."""
    effect: float = DEFAULT_EFFECT
    """The smallest effect of interest that the study was started with, in the metric's unit."""
    effect_given: bool = True
    """Whether the user named it; else it is the metric's own, a part of its range."""
    metric: Metric = SUCCESS_ALONE
    """What runs of the default job would be judged by, in the environment that is asked for."""
    environment: str = ""
    """The environment that is asked for, or the default."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The model under all arms: its name, and its size where code makes it."""
    logged: Sequence[str] = ()
    """Names of the metrics that runs of the study logged."""
    explores: bool = False
    """Whether one run of each arm is made and nothing tested, as the user asked."""
    requested_metric: RequestedMetric | None = None
    """The metric that a flag, the topic or the planner asks for; None where nobody did."""
    checked: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What a check measured of environments with this model, before any training, by environment."""
    noise: Mapping[str, Noise] = field(default_factory=dict)
    """The noise bank's estimate of the spread between seeds, by environment, where it has one."""
    hypotheses: Sequence[Hypothesis] = ()
    not_tested: str = ""
    code: tuple[tuple[str, str], ...] = ()
    """Slot and source of the code that the hypotheses name."""
    tried: tuple[str, ...] = ()
    search: bool = False
    """Whether a screen is to find the arms, so that there are no hypotheses yet."""
    design: Design | None = None
    arms: Sequence[ArmSummary] = ()
    verdicts: Sequence[Verdict] = ()
    warnings: Sequence[str] = ()
    """What the confound linter says about the design's runs, one line each."""
    look: Mapping[str, Any] | None = None
    """The look after which it may go on or settle, with what going on takes, as JSON values; None at any other time."""
    crash: Mapping[str, Any] | None = None
    """The code that is to be repaired, and how it ended a run; all that is shown then beside topic and claims."""
    rejected: str | None = None
    answer_facts: AnswerFacts = field(default_factory=AnswerFacts)
    """What an answer may refer to and draw."""
    sentences: Sequence[str] = ()
    """Those of an answer that is to be read again, with what its references say; none before there is one."""
    fields: tuple[FieldSpec, ...] = field(default_factory=field_specs)
    environments: tuple[Environment, ...] = field(default_factory=known_environments)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    tools: StudyTools | None = field(default=None, repr=False)
    """What it may look at; None for nothing."""

    @property
    def stage(self) -> Stage:
        """Return the action that is due: propose, design, (at a look) go on or settle, with verdicts conclude."""
        if self.crash is not None:
            return "repair"
        if self.look is not None:
            return "look"
        if self.verdicts:
            return "review" if self.sentences else "conclude"
        if self.design is not None:
            raise ValueError("no action is due between a locked design and its verdicts; ask the planner afterwards")
        return "design" if self.hypotheses or self.search else "propose"

    def facts(self) -> dict[str, Any]:
        if self.crash is not None:
            said = [claim.statement for claim in self.hypotheses]
            return {"topic": self.topic, "hypotheses": said, "crash": dict(self.crash)}
        shown = {
            "inquiry": self.campaign and self.campaign.facts(), "explorations": list(self.explorations),
            "linter_warnings": list(self.warnings),
            "findings_of_earlier_studies_quoted": [asdict(entry) for entry in self.findings],
            **({} if self.notebook is None else self.notebook.facts()),
            "user_notes_quoted": [asdict(entry) for entry in self.notes], "last_action_refused": self.rejected,
        }  # fmt: skip
        known = {name: value for name, value in shown.items() if value}
        return {"topic": self.topic} | self._stage_facts() | known

    def _stage_facts(self) -> dict[str, Any]:
        metric, unit = self.metric, {"unit": self.metric.unit} if self.metric.unit else {}
        range_of = {"name": metric_name(metric), "means": metric.meaning, "worst": metric.worst, "best": metric.best}
        judged = {"metric": range_of | unit}
        budget = {
            "seconds_left": round(self.seconds_left), "max_runs": self.max_runs, "runs_at_once": self.parallel,
            "seconds_per_run_of_the_default_job": round(self.seconds_per_run),
        }  # fmt: skip
        claims = [entry.model_dump(mode="json") for entry in self.hypotheses]
        if self.stage in ("look", "conclude", "review"):
            arms = [asdict(arm) for arm in self.arms]
            verdicts = [verdict.model_dump(mode="json", include=_SHOWN_OF_VERDICT) for verdict in self.verdicts]
            facts = {"arms": arms, "hypotheses": claims, "verdicts": verdicts, "budget": budget}
            facts |= {"look": dict(self.look)} if self.look is not None else {}
            facts |= judged if unit or self.look is not None else {}  # of what its numbers are counted in
            if self.sentences:
                facts["sentences"] = {str(number): text for number, text in enumerate(self.sentences, start=1)}
            return facts | (self.answer_facts.payload() if self.look is None else {})
        played = [
            {"name": e.name, "title": e.title, "success_means": e.measures}
            | ({"before_training": dict(self.checked[e.name])} if e.name in self.checked else {})
            | (self._quote_environment(e) if e.name == self.environment else {})
            for e in self.environments
            if self.wanted.find_conflict(e.name) is None
        ]
        setup = {"environments": played, "budget": budget, "smallest_effect": self.effect} | judged
        setup = ({"model": dict(self.model)} if self.model else {}) | setup
        setup |= {"extend_to": self.extend_to} if self.extend_to else {}
        if self.logged:
            setup |= {"metrics_that_runs_logged": list(self.logged)}
        if self.noise:
            setup |= {"sd_between_seeds": {name: round(noise.sd, 4) for name, noise in self.noise.items()}}
        fixed: dict[str, Any] = {"fixed_by_the_user": dict(self.fixed)} if self.fixed else {}
        if self.stage == "design":
            told = {"job_defaults": {spec.name: spec.default for spec in self.fields if spec.name != MODEL}} | fixed
            if self.search:
                told |= {"search": True, "sensible_values": {spec.name: list(spec.ladder) for spec in self.fields}}
            said = {"left_out_by_the_hypotheses": self.not_tested, "code": list(self.tried)}
            told |= {name: value for name, value in said.items() if value}
            return told | setup | {"hypotheses": claims}
        fields = {s.name: f"{value_text(s.default)}; {', '.join(map(value_text, s.ladder))}" for s in self.fields}
        entries = kinds().values()
        metrics = {flag_syntax(kind): f"{kind.title}; smallest effect {kind.effect:g} of its range" for kind in entries}
        job = {spec.name: spec.default for spec in self.fields}
        own = {slot.name: slot.built_in for slot in SLOTS.values() if self.code_allowed or slot.names}
        own |= {name: f"{job['algorithm']}'s own" for name in own if not does_as_written(name, job)}
        code = f"may not be proposed any more: {NO_CODE_NOW}" if self.plays_seen else {"built_in": own}
        if self.known:
            setup |= {"effects_found_here": list_effects(self.known, _EFFECTS_SHOWN)}
        return {"job_fields": fields} | fixed | {"metrics": metrics, "code": code} | setup

    @staticmethod
    def _quote_environment(environment: Environment) -> dict[str, Any]:
        with suppress(InvalidRequest):  # its files are gone: who plays it will say so
            return {"rewards": list(environment.reward_range), "quoted": describe_environment(environment)}
        return {}


@dataclass(frozen=True, slots=True)
class PlannerTurn:
    """One action and what it took to get it."""

    action: Action
    tries: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The tokens by purpose, with their `cost` where prices are known: the stage, and `tools` for what led to looks."""
    rejected: tuple[str, ...] = ()
    """Why earlier tries of this turn were refused, oldest first."""
    models: tuple[str, ...] = ()
    """What an endpoint calls the models that answered."""
    note: str = ""
    """What the planner assumed, for the report."""
    not_tested: tuple[str, ...] = ()
    """What of the topic the action leaves out: words of the topic, or the planner's own sentence on it."""
    left: tuple[str, ...] | None = None
    """Words of the topic that nothing in the design covers, by code; None where they were not looked for."""
    choices: tuple[str, ...] = ()
    """What a planner chose that nobody asked for, a sentence of code's each."""
    tried: tuple[str, ...] = ()
    """What its code gave on recorded plays."""
    refused: DesignRefused | None = None
    """Why `check` refuses the action, where the planner has no other idea."""
    tool_results: tuple[ToolResult, ...] = ()
    """What it looked at before."""
    side_actions: tuple[SideAction, ...] = ()
    """What it said beside the action."""

    def payload(self) -> dict[str, Any]:
        more = {
            "models": list(self.models), "choices": list(self.choices), "tried": list(self.tried),
            "spent": {name: dict(each) for name, each in self.spent.items()},
            "looks": [look.payload() for look in self.tool_results],
            "node": self.action.node if isinstance(self.action, Propose | Replicate) else "",
        }  # fmt: skip
        return {
            "action": self.action.action, "tries": self.tries,
            "tokens": {"prompt": self.prompt_tokens, "completion": self.completion_tokens},
            "rejected": list(self.rejected), "note": self.note, "not_tested": list(self.not_tested),
            **({} if self.left is None else {"left": list(self.left)}),
            **{name: value for name, value in more.items() if value},
        }  # fmt: skip


class Planner(Protocol):
    """Proposes; disposes of nothing."""

    @property
    def name(self) -> str:
        """`rules`, `llm`, or the name under which an installed package brings it."""
        ...

    @property
    def model(self) -> str | None:
        """The language model's name; None for a planner without one."""
        ...

    def act(self, context: PlannerContext, check: Check) -> PlannerTurn:
        """Return the due action, accepted by `check`, or with its refusal where the planner has no other idea. Raises
        BadTopic (the topic cannot be read), PlannerFailed (no usable answer) or DesignRefused (no answer that `check`
        accepts)."""
        ...
