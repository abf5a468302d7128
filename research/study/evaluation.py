"""From a topic to a design or a refusal: the planner's two turns, and what the compiler makes of their actions.

A study and its preview go the same way, `design_topic`; they differ in how a turn is taken: a study keeps it in its
folder and its log, a preview forgets it. An action is evaluated once: the planner asks whether it would be
refused (`ActionCheck`), and who asked the planner takes the result of the same evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from research.design.compiler import CompiledDesign, DesignCompiler, accept_hypotheses, proposed_code, seed_source
from research.design.sample_size import metric_of
from research.errors import DesignRefused, PlannerFailed
from research.llm_planner.strict_actions import DECLINABLE
from research.planner.digest import Digest
from research.planner.protocol import Planner, PlannerTurn
from research.planner.quoted import Quoted
from research.proposals.actions import Action, Decline, Propose, ProposeDesign
from research.proposals.flags import RequestedComparison
from research.rule_planner.planner import environment_asked
from studies.records.design import Design, Hypothesis
from studies.records.design_parts import Noise, NoisePlan
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

    def compiler_now(self) -> DesignCompiler:
        """Return the compiler with the time that is left now."""
        return replace(self.compiler, seconds_left=self.seconds_left())

    def digest(self, proposal: AcceptedProposal | None = None, rejected: str | None = None) -> Digest:
        """Return what the planner is told before its proposal, or (with the proposal) before its design."""
        compiler = self.compiler
        job, episodes = compiler.base or Job(), compiler.requirements.episodes
        return Digest(
            topic=self.topic,
            seconds_left=self.seconds_left(),
            seconds_per_run=compiler.price.run(job, episodes),
            parallel=compiler.price.parallel,
            max_runs=compiler.budget.max_runs,
            effect=compiler.requirements.effect,
            noise=self._noise(job, episodes),
            hypotheses=proposal.hypotheses if proposal else (),
            not_tested=proposal.action.not_tested if proposal else "",
            search=proposal is not None and proposal.action.search,
            notes=self.notes,
            rejected=rejected,
            wanted=self.requested,
            code_allowed=self.code_allowed,
        )

    def _noise(self, job: Job, episodes: int) -> dict[str, Noise]:
        found = {name: self.compiler.bank.find(name, job, metric_of(name, episodes)) for name in environments()}
        return {name: noise for name, noise in found.items() if noise is not None}


class ActionCheck:
    """Says why an action would be refused (`research.planner.protocol.Check`), and remembers what it compiled."""

    def __init__(self, context: PlanningContext, digest: Digest) -> None:
        self._context = context
        self._digest = digest
        self._last: tuple[Action, CompiledDesign | DesignRefused | None] | None = None

    def __call__(self, action: Action) -> DesignRefused | None:
        """Return why an action would be refused, None for one that is accepted."""
        result = self._evaluated(action)
        return result if isinstance(result, DesignRefused) else None

    def compiled(self, action: ProposeDesign) -> CompiledDesign:
        """Return what the compiler made of a design; raise DesignRefused."""
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
        context, digest = self._context, self._digest
        if action.action != digest.stage and not (isinstance(action, Decline) and digest.stage in DECLINABLE):
            raise DesignRefused(f"expected the action {digest.stage!r} now; found {action.action!r}")
        if isinstance(action, Propose):
            asked = environment_asked(context.topic, context.requested)
            context.compiler_now().check_proposal(action, asked, code_allowed=context.code_allowed)
        if not isinstance(action, ProposeDesign):
            return None
        if (action.screen is not None) != digest.search:
            told = ("a screen, as a search was proposed", "none") if digest.search else ("no screen", "one")
            raise DesignRefused(
                f"expected {told[0]}; found {told[1]}; a proposal with `search` is what a screen follows from"
            )
        if (other := context.requested.refuses(action.environment)) is not None:
            raise other
        return context.compiler_now().compile(digest.hypotheses, action)


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
    turn = take(digest, ActionCheck(context, digest))
    assert isinstance(turn.action, Propose)
    proposal = AcceptedProposal(turn.action, accept_hypotheses(turn.action), turn)
    announce(proposal)
    return design(context, proposal, take)


def design(
    context: PlanningContext, proposal: AcceptedProposal, take: TakeTurn, rejected: str | None = None
) -> EvaluatedDesign:
    """Return the planner's design for a proposal, evaluated; `rejected` says why the one before was refused."""
    digest = context.digest(proposal, rejected)
    check = ActionCheck(context, digest)
    turn = take(digest, check)
    assert isinstance(turn.action, ProposeDesign)
    try:
        result: CompiledDesign | DesignRefused = check.compiled(turn.action)
    except DesignRefused as error:
        result = error
    return EvaluatedDesign(context.topic, proposal, turn.action, turn, result)


def ask(planner: Planner, digest: Digest, check: ActionCheck) -> PlannerTurn:
    """Return the planner's turn; raise PlannerFailed for an action that is refused, unless the turn says so itself."""
    turn = planner.act(digest, check)
    wrong = check(turn.action)
    if wrong is not None and turn.refused is None:
        raise PlannerFailed(f"the planner {planner.name} gave an action that is refused: {wrong.message}")
    return turn
