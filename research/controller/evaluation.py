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

from research.controller.rounds import PricedExploration, Replicated, explored, replicated
from research.design.compiler import CompiledDesign, DesignCompiler, accept_hypotheses, proposed_code, seed_source
from research.errors import BadMetric, Declined, DesignRefused, PlannerFailed
from research.installation.base_job import fixed_fields
from research.planners.context import NO_LOOKS, NO_REWARD_NOW, Digest, Looks, tunable_facts
from research.planners.history import InquiryFacts, Notebook, Quoted
from research.planners.prompts import DECLINABLE, environments_named, unread_words
from research.planners.protocol import Planner, PlannerTurn
from research.planners.rules import RulesPlanner, environment_asked
from research.proposals.actions import (
    Action,
    Aside,
    AskUser,
    Decline,
    Explore,
    Note,
    Propose,
    ProposeDesign,
    Replicate,
    Revise,
)
from research.proposals.flags import RequestedComparison
from research.proposals.metric_choice import AskedMetric, not_judged
from studies.records.alpha import Ledgers
from studies.records.design import REWARD, Design, Hypothesis, Metric, NoisePlan
from studies.records.procedure import Noise
from studies.records.verdict import who
from swarm.environments.registry import environments
from swarm.job import Job


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """What a topic is planned by."""

    topic: str
    compiler: DesignCompiler
    """What designs are judged by; `seconds_left` of it is asked anew each time."""
    seconds_left: Callable[[], float]
    """What remains of the budget's wall clock now: a slow planner spends it too."""
    requested: RequestedComparison = field(default_factory=RequestedComparison)
    code_allowed: bool = False
    """Whether runs are in containers, so that a reward function may be proposed."""
    notes: tuple[Quoted, ...] = ()
    """Notes that people left in the study, quoted."""
    locked: Metric | None = None
    """What the study is judged by, once that is locked: its environment may be gone by then."""
    inquiry: InquiryFacts | None = None
    """What the rounds before found; None in the first."""
    notebook: Notebook | None = None
    """What the planner wrote down; None where it can write nothing down."""
    findings: tuple[Quoted, ...] = ()
    """What earlier studies here found about the topic."""
    looks: Callable[[PlanningContext], Looks] = lambda context: NO_LOOKS
    """Returns what a planner may look at, by the levels and prices of a context."""
    plays_seen: bool = False
    """Whether a planner looked at plays of hidden tasks: then no reward function is taken any more."""

    def compiler_now(self) -> DesignCompiler:
        """Return the compiler with the time that is left now."""
        return replace(self.compiler, seconds_left=self.seconds_left())

    def judged_by(self, action: Action) -> PlanningContext:
        """Return the context with the metric that a proposal names.

        Raises DesignRefused for one that there is not, and for another one than the user's flag names.
        """
        if not isinstance(action, Propose) or not action.metric.strip():
            return self
        requirements = self.compiler.requirements
        try:
            named = AskedMetric.named(action.metric)
        except BadMetric as error:
            raise DesignRefused(error.message) from error
        if (asked := requirements.metric) is not None and not asked.words and asked.text != named.text:
            raise DesignRefused(
                f"expected the metric {asked.text}, which the user asks for; found {named.text}; leave `metric` empty"
            )
        judged = replace(requirements, metric=named)
        return replace(self, compiler=replace(self.compiler, requirements=judged))

    def metric(self) -> Metric:
        """Return what runs of the job under all arms are judged by, where it is played.

        Raises DesignRefused for a metric that the environment does not give.
        """
        return self.locked or self.compiler.metric_in(self._played(self.compiler.base or Job()).environment)

    def replicated(self, action: Replicate) -> Replicated:
        """Return the comparison that a claim is put to the test with once more; raise DesignRefused."""
        return replicated(action, self.inquiry, self.compiler)

    def hypotheses(self, proposal: Propose) -> tuple[Hypothesis, ...]:
        """Return the hypotheses of a proposal as records; raise DesignRefused for one that cannot be tested."""
        judged = None if self.compiler.requirements.metric is None else self.metric()
        number = 1 if self.inquiry is None else self.inquiry.round
        return accept_hypotheses(proposal, self.requested.models, judged, number)

    def digest(self, proposal: AcceptedProposal | None = None, rejected: str | None = None) -> Digest:
        """Return what the planner is told before its proposal, or (with the proposal) before its design."""
        compiler, metric = self.compiler, self.metric()
        job = compiler.base or Job()
        return Digest(
            topic=self.topic,
            seconds_left=self.seconds_left(),
            seconds_per_run=compiler.price.judged(self._played(job), metric),
            parallel=compiler.price.parallel,
            max_runs=compiler.budget.max_runs,
            effect=compiler.requirements.least(metric),
            effect_given=compiler.requirements.effect is not None,
            metric=metric,
            asked=compiler.requirements.metric,
            checked=self._checked(job),
            noise=self._noise(job),
            hypotheses=proposal.hypotheses if proposal else (),
            not_tested=proposal.action.not_tested if proposal else "",
            search=proposal is not None and proposal.action.search,
            notes=self.notes,
            rejected=rejected,
            wanted=self.requested,
            code_allowed=self.code_allowed and not self.plays_seen,
            fields=tunable_facts(job, self.requested.models),
            fixed=fixed_fields(job),
            inquiry=self.inquiry,
            notebook=self.notebook,
            findings=self.findings,
            may_look=self.looks(self),
            plays_seen=self.plays_seen,
        )

    def _played(self, job: Job) -> Job:
        """Return the job in the environment that the user's job, a flag or the topic names."""
        if "environment" in fixed_fields(job):
            return job
        return job.model_copy(update={"environment": environment_asked(self.topic, self.requested)})

    def _checked(self, job: Job) -> dict[str, dict[str, float]]:
        """Return what was measured of each environment with the job's model."""
        figures = {}
        for name in environments():
            known = self.compiler.price.estimates.of(job.model_copy(update={"environment": name}))
            if known is not None:
                said = {"success": known.base_success, "share_of_groups_with_equal_rewards": known.equal_groups}
                figures[name] = {what: value for what, value in said.items() if value is not None}
        return figures

    def _noise(self, job: Job) -> dict[str, Noise]:
        found = {}
        for name in environments():
            with suppress(DesignRefused):  # an environment that does not give the metric
                found[name] = self.compiler.bank.find(name, job, self.compiler.metric_in(name))
        return {name: noise for name, noise in found.items() if noise is not None}


class ActionCheck:
    """Says why an action would be refused (`research.planners.protocol.Check`), and remembers what it compiled."""

    def __init__(self, context: PlanningContext, digest: Digest) -> None:
        self._context = context
        self._digest = digest
        self._last: tuple[Action, CompiledDesign | DesignRefused | None] | None = None

    def __call__(self, action: Action) -> DesignRefused | None:
        """Return why an action would be refused, None for one that is accepted."""
        result = self._evaluated(action)
        return result if isinstance(result, DesignRefused) else None

    def compiled(self, action: Action) -> CompiledDesign:
        """Return what the compiler made of a design, or of a replication; raise DesignRefused."""
        result = self._evaluated(action)
        if isinstance(result, DesignRefused):
            raise result
        assert result is not None
        return result

    def _evaluated(self, action: Action) -> CompiledDesign | DesignRefused | None:
        # Written out, since to Python 0 is False, and to a job it is not.
        if self._last is None or self._last[0].model_dump_json() != action.model_dump_json():
            try:
                self._last = action, self._evaluate(action)
            except DesignRefused as error:
                self._last = action, error
        return self._last[1]

    def _evaluate(self, action: Action) -> CompiledDesign | None:
        context, digest = self._context.judged_by(action), self._digest
        if isinstance(action, Note | Revise | AskUser):
            _require_new(action, digest)
            return None
        if action.action != digest.stage and not _may_stand_in(action, digest):
            raise DesignRefused(f"expected the action {digest.stage!r} now; found {action.action!r}")
        if isinstance(action, Replicate):
            return self._compiled_again(context, action)
        if isinstance(action, Explore):
            self.exploration(action)
            return None
        if isinstance(action, Propose):
            self._require_proposable(context, action)
        return self._compiled(context, action) if isinstance(action, ProposeDesign) else None

    def exploration(self, action: Explore) -> PricedExploration:
        """Return what would be tried; raise DesignRefused."""
        context = self._context
        if context.inquiry is None:
            raise DesignRefused("expected a question first; found an exploration, which is of later rounds")
        if (other := context.requested.refuses(action.environment)) is not None:
            raise other
        return explored(context.compiler_now(), context.inquiry, action)

    def _compiled_again(self, context: PlanningContext, action: Replicate) -> CompiledDesign:
        again = context.replicated(action)
        if (other := context.requested.refuses(again.design.environment)) is not None:
            raise other
        context = context.judged_by(again.proposal)
        return context.compiler_now().compile(context.hypotheses(again.proposal), again.design)

    def _require_proposable(self, context: PlanningContext, action: Propose) -> None:
        if context.plays_seen and any(entry.variable == REWARD for entry in action.hypotheses):
            raise DesignRefused(f"expected hypotheses about job fields; found a reward function: {NO_REWARD_NOW}")
        asked = environment_asked(context.topic, context.requested)
        context.compiler_now().check_proposal(action, asked, code_allowed=context.code_allowed)

    def _compiled(self, context: PlanningContext, action: ProposeDesign) -> CompiledDesign:
        digest = self._digest
        if (action.screen is not None) != digest.search:
            told = ("a screen, as a search was proposed", "none") if digest.search else ("no screen", "one")
            raise DesignRefused(
                f"expected {told[0]}; found {told[1]}; a proposal with `search` is what a screen follows from"
            )
        if (other := context.requested.refuses(action.environment)) is not None:
            raise other
        return context.compiler_now().compile(digest.hypotheses, action)


def _may_stand_in(action: Action, digest: Digest) -> bool:
    """Return whether an action may be taken in the place of the due one.

    That is to decline, and, in a later round, to conclude or to replicate a claim.
    """
    if digest.stage not in DECLINABLE or isinstance(action, Propose | ProposeDesign):
        return False
    if isinstance(action, Replicate | Explore) and digest.stage != "propose":
        return False
    return isinstance(action, Decline) or digest.inquiry is not None


def _require_new(aside: Aside, digest: Digest) -> None:
    """Raise DesignRefused for what cannot be written down beside an action."""
    if digest.notebook is None or digest.stage not in DECLINABLE:
        raise DesignRefused(
            f"expected the action {digest.stage!r} now; found {aside.action!r}; nothing is written down"
        )
    if (why := digest.notebook.refuses(aside)) is not None:
        raise DesignRefused(why)


@dataclass(frozen=True, slots=True)
class TakenTurn:
    """A turn as it was taken, now or before a restart."""

    action: Action
    secret: bytes
    """What the seeds of a design follow from."""
    note: str = ""
    not_tested: tuple[str, ...] = ()
    refused: DesignRefused | None = None
    """Why its action would be refused; a study takes no such turn."""


TakeTurn = Callable[[Digest, ActionCheck], TakenTurn]
"""Takes a turn of the due kind, or raises what ends the planning."""


@dataclass(frozen=True, slots=True)
class AcceptedProposal:
    """A proposal, and its hypotheses as records."""

    action: Propose
    hypotheses: tuple[Hypothesis, ...]
    turn: TakenTurn


@dataclass(frozen=True, slots=True)
class EvaluatedDesign:
    """A planner's design, and what the compiler made of it: a design without seeds, or a refusal."""

    topic: str
    proposal: AcceptedProposal
    action: ProposeDesign
    turn: TakenTurn
    result: CompiledDesign | DesignRefused

    def compiled(self) -> CompiledDesign:
        """Return the compiled design; raise DesignRefused."""
        if isinstance(self.result, DesignRefused):
            raise self.result
        return self.result

    def noise_plan(self, study: str) -> NoisePlan | None:
        """Return the runs that the design of a study waits for; None where there are none. Raises DesignRefused."""
        return self.compiled().noise_plan(seed_source(f"{study}:noise", self.turn.secret))

    def locked(self, study: str) -> Design:
        """Return the design of a study as it is locked; raise DesignRefused."""
        code = proposed_code(self.proposal.action)
        return self.compiled().locked(self.topic, seed_source(study, self.turn.secret), code)


def design_topic(
    context: PlanningContext, take: TakeTurn, announce: Callable[[AcceptedProposal], None] = lambda proposal: None
) -> EvaluatedDesign:
    """Return the planner's design on a topic, evaluated; `announce` is told the proposal before a design is asked for.

    Raises DesignRefused for hypotheses that are unsound, and what `take` raises.
    """
    digest = context.digest()
    check = ActionCheck(context, digest)
    turn = take(digest, check)
    again = context.replicated(turn.action) if isinstance(turn.action, Replicate) else None
    action = turn.action if again is None else again.proposal
    assert isinstance(action, Propose)
    hypotheses = context.judged_by(action).hypotheses(action)
    proposal = AcceptedProposal(action, hypotheses, turn)
    announce(proposal)
    if again is None:
        return design(context, proposal, take)
    return EvaluatedDesign(context.topic, proposal, again.design, turn, _result(check, turn.action))


def design(
    context: PlanningContext, proposal: AcceptedProposal, take: TakeTurn, rejected: str | None = None
) -> EvaluatedDesign:
    """Return the planner's design for a proposal, evaluated; `rejected` says why the one before was refused."""
    context = context.judged_by(proposal.action)
    digest = context.digest(proposal, rejected)
    check = ActionCheck(context, digest)
    turn = take(digest, check)
    assert isinstance(turn.action, ProposeDesign)
    return EvaluatedDesign(context.topic, proposal, turn.action, turn, _result(check, turn.action))


def _result(check: ActionCheck, action: Action) -> CompiledDesign | DesignRefused:
    try:
        return check.compiled(action)
    except DesignRefused as error:
        return error


def tried(context: PlanningContext, planner: Planner) -> EvaluatedDesign:
    """Return a planner's design on a topic with turns and seeds that nobody keeps; raise as `design_topic` does."""

    def take(digest: Digest, check: ActionCheck) -> TakenTurn:
        turn = ask(planner, digest, check)
        if isinstance(turn.action, Decline):
            raise Declined(turn.action.reason, who(planner.name, planner.model))
        return TakenTurn(turn.action, secrets.token_bytes(32), turn.note, turn.not_tested, turn.refused)

    return design_topic(context, take)


AUTO_ROUNDS = 4
"""Most rounds of an inquiry of which nobody says how many: more would leave the first question little of the level."""


def in_rounds(context: PlanningContext, designed: EvaluatedDesign) -> EvaluatedDesign:
    """Return a first design as the first of as many rounds as its price leaves time for, where nobody says how many.

    Each of them then has a part of the level; where the time carries one round alone it keeps all of it.
    """
    requirements, action = context.compiler.requirements, designed.action
    if requirements.rounds is not None or context.inquiry is not None or action.replication is not None:
        return designed
    context = context.judged_by(designed.proposal.action)
    for rounds in range(AUTO_ROUNDS, 1, -1):
        compiler = replace(context.compiler_now(), ledgers=Ledgers.begin(rounds))
        with suppress(DesignRefused):
            compiled = compiler.compile(designed.proposal.hypotheses, action)
            if compiled.affords_as_often(rounds):
                return replace(designed, result=compiled)
    return designed


def ask(planner: Planner, digest: Digest, check: ActionCheck) -> PlannerTurn:
    """Return the planner's turn; raise PlannerFailed for an action that is refused, unless the turn says so itself.

    What the topic asks for beside the metric of a proposal is said first of what is not tested, whoever plans; so are
    the words of it that code finds nothing of, and what a model chose that nobody named.
    """
    turn = planner.act(digest, check)
    wrong = check(turn.action)
    if wrong is not None and turn.refused is None:
        raise PlannerFailed(f"the planner {planner.name} gave an action that is refused: {wrong.message}")
    if turn.refused is not None or digest.wanted.vary or digest.inquiry is not None:
        return turn  # what the topic asks for is said in its first round
    action, own = turn.action, planner.name != RulesPlanner.name
    if own and isinstance(action, Propose | ProposeDesign):
        turn = replace(turn, note=" ".join(filter(None, (turn.note, *_chosen(digest, action)))))
    if not isinstance(action, Propose):
        return turn
    judged = AskedMetric.named(action.metric) if action.metric.strip() else digest.asked
    unread = unread_words(digest) if own else ()
    return replace(turn, not_tested=(*not_judged(digest.topic, judged), *turn.not_tested, *unread))


def _chosen(digest: Digest, action: Propose | ProposeDesign) -> Iterator[str]:
    """Yield what a model chose that neither the topic nor a flag names."""
    if isinstance(action, ProposeDesign):
        if not environments_named(digest) and "environment" not in digest.fixed:
            yield f"The environment {action.environment} is the planner's choice: the topic and the flags name none."
        return
    asked = "" if digest.asked is None else digest.asked.text
    if (named := action.metric.strip()) and AskedMetric.named(named).text != asked:
        instead = f", in place of {asked}" if asked else ": the topic and the flags name none"
        yield f"The metric {named} is the planner's choice{instead}."
    effects = [entry.smallest_effect for entry in action.hypotheses if entry.smallest_effect is not None]
    if effects and (named or min(effects) < digest.effect):
        source = "which --effect says" if digest.effect_given else "the usual one"
        instead = "" if named else f", in place of {digest.effect:g}, {source}"
        yield f"A smallest effect of {min(effects):g} is the planner's choice{instead}."
