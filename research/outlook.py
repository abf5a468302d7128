"""What a study would be, without running anything: its design or refusal, what it could see, and what it would cost.

The planner is asked as in a study, and the design is compiled as in a study, with seeds that are thrown away. Where a
design is refused, what its comparison could see with each number of seeds is shown all the same. Expected costs take
the noise for known and normal, and count no verdict of equivalence at an early look.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from research.design import accept_hypotheses, compile_design, noise_plan, proposed_code, refusal, seed_source
from research.errors import Declined, DesignRefused, PlannerFailed
from research.noise_bank import NoiseBank
from research.planner.actions import LEAST_SEEDS, Action, Decline, Propose, ProposeDesign
from research.planner.digest import Digest
from research.planner.protocol import Planner, PlannerTurn
from research.planner.rules import environment_asked
from research.pricing import Pricing
from research.purse import Purse, Stage
from research.shape import Shape, shaped
from research.sight import MOST_SEEDS, Sight
from research.sizing import Refused, Sizing, metric_of
from research.terms import Terms
from research.wanted import Wanted
from studies.procedure import Look, Noise, NoisePlan
from studies.question import screen_sentence, sentences, unequal_episodes
from studies.records import Budget, Design, Hypothesis
from studies.said import who
from swarm.environments.registry import environments
from swarm.job import Job


@dataclass(frozen=True, slots=True)
class Seen:
    """What so many seeds of each arm could see, and what they would cost at the worst."""

    seeds: int
    power: float
    """At the smallest effect of interest."""
    detectable: float | None
    """The smallest effect that is seen with the promised power; None where no difference of shares is."""
    runs: int
    seconds: float
    run_hours: float
    affordable: bool


@dataclass(frozen=True, slots=True)
class Expected:
    """What looks save: the runs and seconds of a confirmation on average."""

    effect: float
    runs: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a study would be."""

    topic: str
    tested: tuple[str, ...]
    """What would be put to the test, in sentences."""
    not_tested: tuple[str, ...]
    """What of the topic the plan leaves out."""
    unequal: tuple[str, ...]
    """What the arms would not share of training, each a clause."""
    notes: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    terms: Terms
    effect: float
    noise: Noise | None
    """The bank's word; None where `unknown` says why there is none."""
    unknown: str | None
    """Why there is no word on the noise, in a sentence."""
    first: NoisePlan | None
    """What would be run before the design: A/A runs, a training with a learning rate of 0; None where nothing has to
    be."""
    design: Design | None
    refused: str | None
    arms: tuple[str, ...]
    stages: tuple[Stage, ...]
    """What is run at the worst."""
    total_s: float
    budget: str
    curve: tuple[Seen, ...]
    sight: Sight | None
    affordable: int | None
    """Most seeds of each arm that the budget affords; None for fewer than a test needs."""
    expected: tuple[Expected, ...]


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a plan is made from."""

    topic: str
    planner: Planner
    price: Pricing
    budget: Budget
    terms: Terms
    bank: NoiseBank
    wanted: Wanted = field(default_factory=Wanted)
    code_allowed: bool = False

    def outlook(self) -> Outlook:
        """Ask the planner and return what would come of it. Raises BadTopic, Declined, DesignRefused, PlannerFailed."""
        proposal, proposing, early = self._proposed()
        hypotheses = accept_hypotheses(proposal)
        wish, designing, refused = self._wish(hypotheses, proposal)
        shape = shaped(hypotheses, wish, None, self.terms)
        view = _View(self, hypotheses, wish, shape, self._sizing)
        return view.outlook(proposal, (proposing, designing), refused or early)

    @property
    def _sizing(self) -> Sizing:
        return Sizing(self.terms, Purse(self.price, self.budget), self.bank)

    def _proposed(self) -> tuple[Propose, PlannerTurn, str | None]:
        """Return the proposal, its turn, and why a study would refuse it before it is designed.

        A proposal names no environment, so that it is refused by the noise and prices of the topic's; its design, which
        is asked for all the same, by those of its own.
        """
        early = None
        try:
            turn = self.planner.act(self._digest(), lambda action: self._check(action, ()))
        except DesignRefused as error:
            early = error.message
            turn = self.planner.act(self._digest(), lambda action: None)
        self._heed(turn.action)
        if not isinstance(turn.action, Propose):
            raise PlannerFailed(f"expected the planner {self.planner.name} to propose; found {turn.action.action!r}")
        return turn.action, turn, early

    def _wish(
        self, hypotheses: tuple[Hypothesis, ...], proposal: Propose
    ) -> tuple[ProposeDesign, PlannerTurn, str | None]:
        """Return the planner's design, its turn, and why it would be refused: then it is shown what it could see."""
        digest = self._digest(hypotheses, proposal)
        try:
            turn = self.planner.act(digest, lambda action: self._check(action, hypotheses))
        except DesignRefused:
            turn = self.planner.act(digest, lambda action: None)
        self._heed(turn.action)
        if not isinstance(turn.action, ProposeDesign):
            raise PlannerFailed(f"expected the planner {self.planner.name} to design; found {turn.action.action!r}")
        refused = self._check(turn.action, hypotheses)
        return turn.action, turn, None if refused is None else refused.message

    def _heed(self, action: Action) -> None:
        if isinstance(action, Decline):
            raise Declined(action.reason, who(self.planner.name, self.planner.model))

    def _check(self, action: Action, hypotheses: Sequence[Hypothesis]) -> DesignRefused | None:
        if isinstance(action, ProposeDesign) and (other := self.wanted.refuses(action.environment)) is not None:
            return other
        return refusal(
            action, hypotheses, price=self.price, budget=self.budget, code_allowed=self.code_allowed,
            terms=self.terms, bank=self.bank, environment=environment_asked(self.topic, self.wanted),
        )  # fmt: skip

    def _digest(self, hypotheses: tuple[Hypothesis, ...] = (), proposal: Propose | None = None) -> Digest:
        job = Job()
        noise = {name: self.bank.find(name, job, metric_of(name, self.terms.episodes)) for name in environments()}
        return Digest(
            topic=self.topic,
            seconds_left=self.budget.wall_clock_s,
            seconds_per_run=self.price.run(job, self.terms.episodes),
            parallel=self.price.parallel,
            max_runs=self.budget.max_runs,
            effect=self.terms.effect,
            noise={name: word for name, word in noise.items() if word is not None},
            hypotheses=hypotheses,
            search=proposal is not None and proposal.search,
            not_tested=proposal.not_tested if proposal else "",
            wanted=self.wanted,
            code_allowed=self.code_allowed,
        )


@dataclass(frozen=True, slots=True)
class _View:
    """A shape seen from all sides."""

    prospect: Prospect
    hypotheses: tuple[Hypothesis, ...]
    wish: ProposeDesign
    shape: Shape
    sizing: Sizing

    def _tested(self) -> tuple[str, ...]:
        environment = self.shape.comparison.base.environment
        if self.shape.screen is not None:
            return (screen_sentence([knob.field for knob in self.shape.screen.knobs], environment),)
        return sentences(self.hypotheses, environment, self.shape.effect)

    def _unequal(self) -> tuple[str, ...]:
        arms = zip(self.shape.comparison.arms, self.shape.comparison.jobs, strict=True)
        planned = [(arm.name, job.steps * job.episodes_per_step) for arm, job in arms]
        return tuple(text for arm in planned[1:] if (text := unequal_episodes(planned[0], arm)) is not None)

    def outlook(self, proposal: Propose, turns: Sequence[PlannerTurn], refused: str | None) -> Outlook:
        known = self._known()
        design = None if refused or known is None else self._design(proposal)
        stages = self._stages(design, known[1] if known else None)
        purse = self.sizing.purse
        return Outlook(
            topic=self.prospect.topic,
            tested=self._tested(),
            not_tested=tuple(dict.fromkeys(text for turn in turns for text in turn.not_tested)),
            unequal=self._unequal(),
            notes=tuple(turn.note for turn in turns if turn.note),
            hypotheses=self.hypotheses,
            terms=self.prospect.terms,
            effect=self.shape.effect,
            noise=known[0] if known else None,
            unknown=self.sizing.unknown(self.shape),
            first=None if refused else self._first(),
            design=design,
            refused=refused,
            arms=tuple(arm.name for arm in self.shape.comparison.arms),
            stages=stages,
            total_s=purse.cost(stages),
            budget=purse.stated(),
            curve=tuple(self._seen(known[1], seeds, design) for seeds in _shown(known[1], self.shape.effect))
            if known
            else (),
            sight=known[1] if known else None,
            affordable=self.sizing.affordable(self.shape),
            expected=tuple(self._expected(design, effect) for effect in (0.0, self.shape.effect)) if design else (),
        )

    def _known(self) -> tuple[Noise, Sight] | None:
        try:
            return self.sizing.sight(self.shape)
        except Refused:
            return None

    def _design(self, proposal: Propose) -> Design:
        """Compile the design, with seeds that nobody will use."""
        prospect = self.prospect
        return compile_design(
            prospect.topic, self.hypotheses, self.wish, price=prospect.price, budget=prospect.budget,
            draw_seed=seed_source("plan", secrets.token_bytes(32)), code=proposed_code(proposal),
            terms=prospect.terms, bank=prospect.bank,
        )  # fmt: skip

    def _first(self) -> NoisePlan | None:
        prospect = self.prospect
        return noise_plan(
            self.hypotheses, self.wish, price=prospect.price, budget=prospect.budget,
            draw_seed=seed_source("plan", secrets.token_bytes(32)), terms=prospect.terms, bank=prospect.bank,
        )  # fmt: skip

    def _stages(self, design: Design | None, sight: Sight | None) -> tuple[Stage, ...]:
        """Return the stages of the design, or of what would be needed, or of A/A runs and the least after them."""
        if design is not None:
            screened = self.shape.searching(design.screen.candidates) if design.screen else self.shape
            return self.sizing.stages(screened, len(design.seeds))
        if sight is None:
            return self.sizing.noise_first(self.shape)
        return self.sizing.stages(self.shape, sight.seeds_needed(self.shape.effect) or MOST_SEEDS)

    def _seen(self, sight: Sight, seeds: int, design: Design | None) -> Seen:
        if design is not None and seeds == len(design.seeds):
            stages = self._stages(design, None)
        else:
            stages = self.sizing.stages(self.sizing.searched(self.shape, seeds), seeds)
        return Seen(
            seeds=seeds,
            power=sight.power(seeds, self.shape.effect),
            detectable=sight.detectable(seeds),
            runs=sum(stage.runs for stage in stages),
            seconds=self.sizing.purse.cost(stages),
            run_hours=run_hours(stages),
            affordable=self.sizing.purse.affords(stages),
        )

    def _expected(self, design: Design, effect: float) -> Expected:
        assert design.noise is not None
        made = expected_seeds(design.looks, effect, design.noise.sd) / len(design.seeds)
        stages = self._stages(design, None)
        confirm = next(stage for stage in stages if stage.name == "confirm")
        others = [stage for stage in stages if stage.name.startswith("screen")]
        before, cost = self.sizing.purse.cost(others), self.sizing.purse.cost([*others, confirm])
        runs = confirm.runs * made + sum(stage.runs for stage in others)
        return Expected(effect, runs, before + made * (cost - before))


def run_hours(stages: Sequence[Stage]) -> float:
    """Return the machine hours of all runs together."""
    return sum(stage.runs * stage.seconds_per_run for stage in stages) / 3600


def expected_seeds(looks: Sequence[Look], effect: float, sd: float) -> float:
    """Return the seeds of each arm that are run on average, if `effect` is the true difference."""
    from scipy import special  # takes a while to import, which a command that plans nothing should not wait for

    from studies.statistics.looks import crossings

    last = looks[-1].seeds
    bounds = [-float(special.ndtri(look.alpha / 2)) for look in looks]
    drift = effect / (sd * math.sqrt(2 / last))
    ends = crossings(bounds[:-1], [look.seeds / last for look in looks[:-1]], drift) if len(looks) > 1 else ()
    saved = sum((end.above + end.below) * (last - look.seeds) for end, look in zip(ends, looks, strict=False))
    return last - saved


def _shown(sight: Sight, effect: float) -> list[int]:
    """Return the numbers of seeds worth a line: some, and those around what is needed."""
    need = sight.seeds_needed(effect) or MOST_SEEDS
    around = {need - 1, need, need + 1} & set(range(LEAST_SEEDS, MOST_SEEDS + 1))
    return sorted({2, 3, 4, 5, 6, 8, 12, 16, MOST_SEEDS} | around)
