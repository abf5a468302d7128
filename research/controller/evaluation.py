"""From a topic to a design or a refusal: the planner's turns and the compiler's answers.

A study and its preview go the same way, `design_topic`; they differ in how a turn is taken: a study keeps it in its
folder and its log, a preview forgets it. An action is evaluated once: the planner asks whether it would be
refused (`ActionCheck`), and who asked the planner takes the result of the same evaluation.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from research.controller.rounds import PricedExploration, ReplicationProposal, build_replication, price_exploration
from research.design.compiler import CompiledDesign, DesignCompiler, accept_hypotheses, collect_reward_code, seed_source
from research.errors import BadInput, DesignRefused, PlannerFailed, TopicDeclined
from research.installation.base_job import find_fixed_fields
from research.planners.context import NO_REWARD_NOW, Planner, PlannerContext, PlannerTurn, field_specs
from research.planners.history import CampaignFacts, Notebook, QuotedText
from research.planners.lexicon import find_environment, name_environments
from research.planners.prompts import DECLINABLE
from research.planners.rules import RulesPlanner
from research.planners.tools import StudyTools
from research.proposals.actions import (
    Action,
    AskUser,
    Conclude,
    Decline,
    Explore,
    Note,
    Propose,
    ProposeDesign,
    Replicate,
    Revise,
)
from research.proposals.flags import ParsedTopic, RequestedComparison
from research.proposals.metric_choice import RequestedMetric
from research.text import did_you_mean
from studies.records.alpha import AlphaLedgers
from studies.records.design import REWARD, Design, Hypothesis, Metric, NoisePlan
from studies.records.procedure import Noise
from studies.records.verdict import PlannerMessage, planner_label
from swarm.environments.registry import environments
from swarm.job import Job


@dataclass(frozen=True, slots=True)
class PlanningInputs:
    """What a topic is planned by."""

    topic: str
    compiler: DesignCompiler
    """What designs are judged by; `seconds_left` of it is asked anew each time."""
    seconds_left: Callable[[], float]
    """What remains of the budget's wall clock now: a slow planner spends it too."""
    requested: RequestedComparison = field(default_factory=RequestedComparison)
    parsed: ParsedTopic | None = None
    """What the rules understood of the topic when the study began; None where nobody parsed it."""
    code_allowed: bool = False
    """Whether runs are in containers, so that a reward function may be proposed."""
    notes: tuple[QuotedText, ...] = ()
    """Notes that people left in the study, quoted."""
    locked: Metric | None = None
    """What the study is judged by, once that is locked: its environment may be gone by then."""
    campaign: CampaignFacts | None = None
    """What the rounds before found; None in the first."""
    notebook: Notebook | None = None
    """What the planner wrote down; None where it can write nothing down."""
    findings: tuple[QuotedText, ...] = ()
    """What earlier studies here found about the topic."""
    tools: Callable[[PlanningInputs], StudyTools | None] = lambda context: None
    """Returns what a planner may look at, by the levels and prices of a context."""
    plays_seen: bool = False
    """Whether a planner looked at plays of hidden tasks: then no reward function is taken any more."""

    def current_compiler(self) -> DesignCompiler:
        return replace(self.compiler, seconds_left=self.seconds_left())

    def with_metric_of(self, action: Action) -> PlanningInputs:
        """Return the context with the metric that a proposal names; raise DesignRefused."""
        if not isinstance(action, Propose) or not action.metric.strip():
            return self
        requirements = self.compiler.requirements
        try:
            named = RequestedMetric.parse(action.metric)
        except BadInput as error:
            raise DesignRefused(error.message) from error
        if (asked := requirements.metric) is not None and not asked.words and asked.text != named.text:
            raise DesignRefused(
                f"expected the metric {asked.text}, which the user asks for; found {named.text}; leave `metric` empty"
            )
        judged = replace(requirements, metric=named)
        return replace(self, compiler=replace(self.compiler, requirements=judged))

    def metric(self) -> Metric:
        """Return what the job's runs are judged by; raise DesignRefused for what its environment does not give."""
        return self.locked or self.compiler.metric_in(self._set_environment(self.compiler.base or Job()).environment)

    def build_replication(self, action: Replicate) -> ReplicationProposal:
        return build_replication(action, self.campaign, self.compiler)

    def hypotheses(self, proposal: Propose) -> tuple[Hypothesis, ...]:
        """Return the hypotheses of a proposal as records; raise DesignRefused for one that cannot be tested."""
        judged = None if self.compiler.requirements.metric is None else self.metric()
        number = 1 if self.campaign is None else self.campaign.round
        return accept_hypotheses(proposal, self.requested.models, judged, number)

    def build_context(self, proposal: AcceptedProposal | None = None, rejected: str | None = None) -> PlannerContext:
        """Return what the planner is told before its proposal, or (with the proposal) before its design."""
        compiler, metric = self.compiler, self.metric()
        job = compiler.base or Job()
        checked: dict[str, dict[str, float]] = {}
        noises: dict[str, Noise] = {}
        for name in environments():
            measured = compiler.price.estimates.of(job.model_copy(update={"environment": name}))
            if measured is not None:
                shares = {"success": measured.base_success, "share_of_groups_with_equal_rewards": measured.equal_groups}
                checked[name] = {share: value for share, value in shares.items() if value is not None}
            with suppress(DesignRefused):  # an environment that does not give the metric
                if isinstance(noise := compiler.bank.find(name, job, compiler.metric_in(name)), Noise):
                    noises[name] = noise
        return PlannerContext(
            topic=self.topic,
            seconds_left=self.seconds_left(),
            seconds_per_run=compiler.price.run_with_evaluations(self._set_environment(job), metric),
            parallel=compiler.price.parallel,
            max_runs=compiler.budget.max_runs,
            effect=compiler.requirements.min_effect(metric),
            effect_given=compiler.requirements.effect is not None,
            metric=metric,
            requested_metric=compiler.requirements.metric,
            checked=checked,
            noise=noises,
            hypotheses=proposal.hypotheses if proposal else (),
            not_tested=proposal.action.not_tested if proposal else "",
            search=proposal is not None and proposal.action.search,
            notes=self.notes,
            rejected=rejected,
            wanted=self.requested,
            parsed=self.parsed,
            code_allowed=self.code_allowed and not self.plays_seen,
            fields=field_specs(job, self.requested.models),
            fixed=find_fixed_fields(job),
            campaign=self.campaign,
            notebook=self.notebook,
            findings=self.findings,
            tools=self.tools(self),
            plays_seen=self.plays_seen,
            explores=compiler.explores,
        )

    def _set_environment(self, job: Job) -> Job:
        if "environment" in find_fixed_fields(job):
            return job
        return job.model_copy(update={"environment": find_environment(self.topic, self.requested)})


class ActionCheck:
    """Says why an action would be refused (`research.planners.context.Check`), and remembers what it compiled."""

    def __init__(self, inputs: PlanningInputs, context: PlannerContext) -> None:
        self._inputs = inputs
        self._context = context
        self._last: tuple[Action, CompiledDesign | DesignRefused | None] | None = None

    def __call__(self, action: Action) -> DesignRefused | None:
        """Return why an action would be refused, None for one that is accepted."""
        result = self.evaluate(action)
        return result if isinstance(result, DesignRefused) else None

    def evaluate(self, action: Action) -> CompiledDesign | DesignRefused | None:
        """Return a design, or a refusal; None for an action that is accepted and is none."""
        # Written out, since to Python 0 is False, and to a job it is not.
        if self._last is None or self._last[0].model_dump_json() != action.model_dump_json():
            try:
                self._last = action, self._evaluate(action)
            except DesignRefused as error:
                self._last = action, error
        return self._last[1]

    def _evaluate(self, action: Action) -> CompiledDesign | None:
        inputs, context = self._inputs.with_metric_of(action), self._context
        if isinstance(action, Note | Revise | AskUser):
            if context.notebook is None or context.stage not in DECLINABLE:
                raise DesignRefused(
                    f"expected the action {context.stage!r} now; found {action.action!r}; nothing is written down"
                )
            if (why := context.notebook.find_conflict(action)) is not None:
                raise DesignRefused(why)
            return None
        substitute = context.stage in DECLINABLE and (  # to decline, or later to conclude, replicate or explore
            isinstance(action, Decline)
            or (isinstance(action, Replicate | Explore) and context.stage == "propose" and context.campaign is not None)
            or (isinstance(action, Conclude) and context.campaign is not None)
        )
        if action.action != context.stage and not substitute:
            raise DesignRefused(f"expected the action {context.stage!r} now; found {action.action!r}")
        if isinstance(action, Replicate):
            again = inputs.build_replication(action)
            if (other := inputs.requested.find_conflict(again.design.environment)) is not None:
                raise other
            inputs = inputs.with_metric_of(again.proposal)
            return inputs.current_compiler().compile(inputs.hypotheses(again.proposal), again.design)
        if isinstance(action, Explore):
            self.price_exploration(action)
            return None
        if isinstance(action, Propose):
            if inputs.plays_seen and any(hypothesis.variable == REWARD for hypothesis in action.hypotheses):
                raise DesignRefused(f"expected hypotheses about job fields; found a reward function: {NO_REWARD_NOW}")
            environment = find_environment(inputs.topic, inputs.requested)
            inputs.current_compiler().check_proposal(action, environment, code_allowed=inputs.code_allowed)
        return self._compile_proposal(inputs, action) if isinstance(action, ProposeDesign) else None

    def price_exploration(self, action: Explore) -> PricedExploration:
        inputs = self._inputs
        if inputs.campaign is None:
            raise DesignRefused("expected a question first; found an exploration, which is of later rounds")
        if (other := inputs.requested.find_conflict(action.environment)) is not None:
            raise other
        return price_exploration(inputs.current_compiler(), inputs.campaign, action)

    def _compile_proposal(self, inputs: PlanningInputs, action: ProposeDesign) -> CompiledDesign:
        context = self._context
        first = inputs.campaign is None and inputs.requested.environment is None  # a flag goes before a topic
        if first and (named := name_environments(inputs.topic)) and action.environment not in named:
            expected = f"expected a design in {' or '.join(named)}, which the topic names"
            raise DesignRefused(f"{expected}; found {action.environment}; design it there, or decline")
        if (action.screen is not None) != context.search:
            told = ("a screen, as a search was proposed", "none") if context.search else ("no screen", "one")
            raise DesignRefused(
                f"expected {told[0]}; found {told[1]}; a proposal with `search` is what a screen follows from"
            )
        if (other := inputs.requested.find_conflict(action.environment)) is not None:
            raise other
        shown = [facts.name for facts in context.environments]
        if action.environment not in shown:  # brought here for another study: it was shown to nobody
            near = did_you_mean(action.environment, shown) or "; choose one of them"
            raise DesignRefused(f"expected an environment among {', '.join(shown)}; found {action.environment!r}{near}")
        return inputs.current_compiler().compile(context.hypotheses, action)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A turn as it was taken, now or before a restart."""

    action: Action
    secret: bytes
    """What the seeds of a design follow from."""
    note: str = ""
    not_tested: tuple[str, ...] = ()
    refused: DesignRefused | None = None
    """Why its action would be refused; a study takes no such turn."""


TakeTurn = Callable[[PlannerContext, ActionCheck], TurnResult]
"""Takes a turn of the due kind, or raises what ends the planning."""


@dataclass(frozen=True, slots=True)
class AcceptedProposal:
    """A proposal, and its hypotheses as records."""

    action: Propose
    hypotheses: tuple[Hypothesis, ...]
    turn: TurnResult


@dataclass(frozen=True, slots=True)
class EvaluatedDesign:
    """A planner's design, and what the compiler made of it: a design without seeds, or a refusal."""

    topic: str
    proposal: AcceptedProposal
    action: ProposeDesign
    turn: TurnResult
    result: CompiledDesign | DesignRefused

    def get_compiled(self) -> CompiledDesign:
        if isinstance(self.result, DesignRefused):
            raise self.result
        return self.result

    def noise_plan(self, study: str) -> NoisePlan | None:
        """Return the runs that the design of a study waits for; None where there are none. Raises DesignRefused."""
        return self.get_compiled().noise_plan(seed_source(f"{study}:noise", self.turn.secret))

    def build_lock(self, study: str) -> Design:
        code = collect_reward_code(self.proposal.action)
        return self.get_compiled().build_lock(self.topic, seed_source(study, self.turn.secret), code)


def design_topic(
    inputs: PlanningInputs, take: TakeTurn, announce: Callable[[AcceptedProposal], None] = lambda proposal: None
) -> EvaluatedDesign:
    """Return the planner's evaluated design on a topic; `announce` is told the proposal first; raise DesignRefused."""
    context = inputs.build_context()
    check = ActionCheck(inputs, context)
    turn = take(context, check)
    again = inputs.build_replication(turn.action) if isinstance(turn.action, Replicate) else None
    action = turn.action if again is None else again.proposal
    assert isinstance(action, Propose)
    hypotheses = inputs.with_metric_of(action).hypotheses(action)
    proposal = AcceptedProposal(action, hypotheses, turn)
    announce(proposal)
    if again is None:
        return design_proposal(inputs, proposal, take)
    result = check.evaluate(turn.action)
    assert result is not None
    return EvaluatedDesign(inputs.topic, proposal, again.design, turn, result)


def design_proposal(
    inputs: PlanningInputs, proposal: AcceptedProposal, take: TakeTurn, rejected: str | None = None
) -> EvaluatedDesign:
    """Return the planner's design for a proposal, evaluated; `rejected` says why the one before was refused."""
    inputs = inputs.with_metric_of(proposal.action)
    context = inputs.build_context(proposal, rejected)
    check = ActionCheck(inputs, context)
    turn = take(context, check)
    result = check.evaluate(turn.action)
    assert isinstance(turn.action, ProposeDesign)
    assert result is not None
    return EvaluatedDesign(inputs.topic, proposal, turn.action, turn, result)


def dry_run(inputs: PlanningInputs, planner: Planner) -> EvaluatedDesign:
    """Return a planner's design on a topic with turns and seeds that nobody keeps; raise as `design_topic` does."""

    def take(context: PlannerContext, check: ActionCheck) -> TurnResult:
        turn = ask_planner(planner, context, check)
        if isinstance(turn.action, Decline):
            by = planner_label(planner.name, planner.model)
            raise TopicDeclined(PlannerMessage(by=by, text=turn.action.reason))
        return TurnResult(turn.action, secrets.token_bytes(32), turn.note, turn.not_tested, turn.refused)

    return design_topic(inputs, take)


AUTO_ROUNDS = 4
"""Most rounds of an inquiry of which nobody says how many: more would leave the first question little of the level."""


def plan_rounds(inputs: PlanningInputs, designed: EvaluatedDesign) -> EvaluatedDesign:
    """Return a first design as the first of as many rounds as its price leaves time for, which share its level."""
    requirements, action = inputs.compiler.requirements, designed.action
    alone = requirements.rounds is not None or action.replication is not None or inputs.compiler.explores
    if alone or inputs.campaign is not None:
        return designed
    inputs = inputs.with_metric_of(designed.proposal.action)
    for rounds in range(AUTO_ROUNDS, 1, -1):
        compiler = replace(inputs.current_compiler(), ledgers=AlphaLedgers.begin(rounds))
        with suppress(DesignRefused):
            compiled = compiler.compile(designed.proposal.hypotheses, action)
            if compiled.affords_repeats(rounds):
                return replace(designed, result=compiled)
    return designed


def ask_planner(planner: Planner, context: PlannerContext, check: ActionCheck) -> PlannerTurn:
    """Return the planner's turn; raise PlannerFailed for an action that is refused, unless the turn says so itself.

    What a model says that it tests, and what it chose unasked, comes first in the turn's note.
    """
    turn = planner.act(context, check)
    wrong = check(turn.action)
    if wrong is not None and turn.refused is None:
        raise PlannerFailed(f"the planner {planner.name} gave an action that is refused: {wrong.message}")
    if turn.refused is not None or context.wanted.vary or context.campaign is not None:
        return turn  # what the topic asks for is said in its first round
    action, own = turn.action, planner.name != RulesPlanner.name
    if own and isinstance(action, Propose | ProposeDesign):
        said = quote_tested(planner, action)
        turn = replace(turn, note=" ".join(filter(None, (said, turn.note, *_describe_choices(context, action)))))
    return turn


def quote_tested(planner: Planner, action: Action) -> str:
    """Return what a planner says that it tests of the topic, quoted as its own words; empty where it says nothing."""
    said = action.tested.strip() if isinstance(action, Propose) else ""
    return f'{planner_label(planner.name, planner.model)} tests of the topic: "{said}"' if said else ""


def _describe_choices(context: PlannerContext, action: Propose | ProposeDesign) -> Iterator[str]:
    if isinstance(action, ProposeDesign):
        named = context.wanted.environment or name_environments(context.topic)
        if not named and "environment" not in context.fixed:
            yield f"The environment {action.environment} is the planner's choice: the topic and the flags name none."
        return
    asked = "" if context.requested_metric is None else context.requested_metric.text
    if (named := action.metric.strip()) and RequestedMetric.parse(named).text != asked:
        instead = f", in place of {asked}" if asked else ": the topic and the flags name none"
        yield f"The metric {named} is the planner's choice{instead}."
    effects = [entry.smallest_effect for entry in action.hypotheses if entry.smallest_effect is not None]
    if effects and (named or min(effects) < context.effect):
        source = "which --effect says" if context.effect_given else "the usual one"
        instead = "" if named else f", in place of {context.effect:g}, {source}"
        yield f"A smallest effect of {min(effects):g} is the planner's choice{instead}."
