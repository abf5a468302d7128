"""The shipped search without a study around it, on a budget of runs.

What one search may spend, and what it leads to: every run of a world is paid for, up to a budget of machine hours.

Promises: the budget is never exceeded; a run that does not fit raises ValueError and costs nothing (`affords` asks).

The shipped way to search, without a study around it: lock, screen, confirm, look, judge, decide, on a world.

Promises. Every step is done by the function that a study does it by: the usual screen
(`simlab.screens`), how it asks and halves (`research.design.screening`), the arms and claims that follow
(`studies.records.statements`), looks, verdicts and the decision table. Only what is around them is left out
(events, processes, budgets in wall clock, A/A runs), so that thousands of worlds are searched in minutes. Screening
runs show the search tasks alone; claims rest on fresh seeds.

The configuration that it leads to has the highest mean among the arms confirmed, the control included; whether that is
claimed is another question, which the verdicts answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from research.design.power import plan_analyses
from research.design.screening import ScreenProgress
from research.proposals.actions import decide, rules_for
from simlab.screens import CONFIRMED, default_screen, default_seeds
from simlab.worlds import Configuration, Played, World, grid
from studies.records.alpha import allocate_single_round
from studies.records.design import Arm, Budget, Design, Metric, Price
from studies.records.procedure import Knob, PowerTarget, Screen
from studies.records.statements import apply_selection, claims, control_values, select_arms
from studies.records.verdict import Verdict
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import judge

_ROUNDING = 1e-9


@dataclass(frozen=True)
class SearchClaim:
    """That one configuration is worth more than another."""

    better: Configuration
    than: Configuration

    def gain(self, world: World) -> float:
        """Return by how much it is so in truth."""
        return world.true_value(self.better) - world.true_value(self.than)


@dataclass(frozen=True)
class SearchOutcome:
    """What a search led to."""

    chosen: Configuration
    claims: tuple[SearchClaim, ...]
    hours: float
    """Machine hours of all its runs."""
    runs: int


@dataclass
class RunBudget:
    """Runs configurations of a world and pays for each run out of one budget of machine hours."""

    world: World
    budget: float
    seed: int = 0
    """Where the seeds of its runs begin."""
    hours: float = 0.0
    runs: int = 0
    _paid: dict[tuple[str, int], float] = field(default_factory=dict)

    def score(self, configuration: Configuration, steps: int | None = None, *, seed: int | None = None) -> float:
        """Return the hidden success of a run, with a fresh seed where none is given.

        A run of the same configuration and seed goes on from where it was: only what is added is paid.
        """
        own = self.seed + self.runs if seed is None else seed
        return self.play(configuration, steps, seed=own, onwards=True).hidden

    def play(
        self, configuration: Configuration, steps: int | None = None, *, seed: int, onwards: bool = False
    ) -> Played:
        """Return what a run shows; raise ValueError where it does not fit."""
        price = self._price(configuration, steps, seed if onwards else None)
        if not self._fits(price):
            raise ValueError(f"expected a run of at most {self.budget - self.hours:.3f} h; found {price:.3f} h")
        self.hours += price
        self.runs += 1
        self._paid[_key(configuration, seed)] = self.world.hours(configuration, steps)
        return self.world.run(configuration, seed, steps)

    def affords(
        self,
        configuration: Configuration,
        steps: int | None = None,
        *,
        seed: int | None = None,
        times: int = 1,
        spare: float = 0.0,
    ) -> bool:
        """Whether a run, or several of one length, still fits and leaves the hours to `spare`.

        With a seed, going on with a run counts what is added only.
        """
        return self._fits(times * self._price(configuration, steps, seed) + spare)

    def found(self, chosen: Configuration, claims: Sequence[SearchClaim]) -> SearchOutcome:
        """Return what a search led to at this bill."""
        return SearchOutcome(chosen, tuple(claims), self.hours, self.runs)

    def _fits(self, price: float) -> bool:
        return self.hours + price <= self.budget * (1 + _ROUNDING)

    def _price(self, configuration: Configuration, steps: int | None, seed: int | None) -> float:
        paid = 0.0 if seed is None else self._paid.get(_key(configuration, seed), 0.0)
        return max(0.0, self.world.hours(configuration, steps) - paid)


def _key(configuration: Configuration, seed: int) -> tuple[str, int]:
    return repr(sorted(configuration.items())), seed


EFFECT = 0.10
"""The smallest effect of interest, and the margin of equivalence."""
LOOKS = 3
CONFIRMING = 1_000_000
"""Where the seeds of the confirmation begin, counted from the search's: none is a screening run's."""
CONTROL = "control"


@dataclass(frozen=True)
class Shipped:
    """Screen by a response surface, confirm with fresh seeds, claim what its locked test supports."""

    name: str = "ajet"
    confirmed: int = CONFIRMED
    seeds: int | None = None
    """Seeds of each arm confirmed; None for the usual share of the budget."""
    telling: int | None = None
    """Steps after which runs are known to rank as at the end; None where nobody knows."""

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search a world for at most `budget` machine hours."""
        bill, price = RunBudget(world, budget, seed), mean_price(world)
        design = self.locked(world, control, budget / price, seed)
        if design is None:
            return bill.found(control, [])
        reserved = (1 + self.confirmed) * len(design.seeds) * price
        confirmed = screened(design, bill, reserved)
        if not confirmed.hypotheses:
            return bill.found(control, [])
        verdicts, values = confirm(confirmed, bill)
        arms = {arm.name: dict(arm.overrides) for arm in confirmed.arms}
        chosen = max(arms, key=lambda name: fmean(values[name] or [0.0]))
        supported = [arms[_treated(confirmed, name)] for name, verdict in verdicts.items() if holds(verdict)]
        return bill.found(arms[chosen], [SearchClaim(arm, arms[CONTROL]) for arm in supported])

    def locked(self, world: World, control: Configuration, runs: float, seed: int) -> Design | None:
        """Return the design that so many whole runs carry; None where they carry no screen."""
        knobs = tuple(Knob(field=name, values=values) for name, values in world.knobs.items())
        seeds = self.seeds or default_seeds(runs, self.confirmed)
        screen = default_screen(
            knobs, runs, steps=world.steps, seeds=seeds, confirmed=self.confirmed, seed=seed, telling=self.telling
        )
        first = seed + CONFIRMING
        return design_of(control, screen, range(first, first + seeds)) if screen else None


def mean_price(world: World) -> float:
    """Return the hours of a whole run, the mean over all configurations: what a budget is divided by."""
    return fmean(world.hours(place) for place in grid(world))


def holds(verdict: Verdict) -> bool:
    """Whether a verdict claims that the treatment is better."""
    return verdict.verdict == "supported"


def design_of(control: Configuration, screen: Screen, seeds: Sequence[int]) -> Design:
    """Return the lock of a screen and its confirmation."""
    return Design(
        question="Which configuration is best?", environment="arith", base_job={},
        arms=(Arm(name=CONTROL, overrides=dict(control)),), control_arm=CONTROL, hypotheses=(), seeds=tuple(seeds),
        metric=Metric(meaning="share of hidden tasks solved", episodes=512), test="common",
        budget=Budget(wall_clock_s=1.0), price=Price(runs=1, parallel=1, seconds_per_run=1, total_s=1, basis="none"),
        promise=PowerTarget(power=0.8, effect=EFFECT), looks=plan_analyses(len(seeds), LOOKS),
        equivalence_margin=EFFECT, multiplicity="dunnett_bh", screen=screen,
    )  # fmt: skip


def screened(design: Design, bill: RunBudget, reserved: float = 0.0) -> Design:
    """Run a design's screen to its end and return the design that is confirmed.

    The first run that would touch the `reserved` hours ends it, as in a study: who is kept follows from those before.
    """
    screen, scores = design.screen, dict[tuple[str, int], float | None]()
    assert screen is not None
    progress = ScreenProgress(screen, control_values(design), scores=scores)
    while True:
        arm = progress.next_candidate()
        progress = replace(progress, asked=(*progress.asked, *([arm] if arm else [])))
        trials = progress.due_trials()
        places = {arm.name: dict(arm.overrides) for arm in progress.asked}
        for trial in trials:
            place, steps = places[trial.candidate], screen.rungs[trial.rung].steps
            if bill.affords(place, steps, spare=reserved):
                scores[trial] = bill.play(place, steps, seed=screen.seed).search
        if not trials or any(trial not in scores for trial in trials):
            break
    ended = progress.ended()
    if not ended.asked:
        return apply_selection(design, (), ())
    arms = select_arms(design, ended.asked, ended.select())
    return apply_selection(design, arms, claims(design, arms))


def confirm(design: Design, bill: RunBudget) -> tuple[dict[str, Verdict], dict[str, list[float]]]:
    """Run the arms look by look and return the last verdict on each claim, and each arm's values.

    Seed by seed over the arms, as far as the budget goes: a look that it cuts short is judged on what is there, as in a
    study.
    """
    places = {arm.name: dict(arm.overrides) for arm in design.arms}
    values: dict[str, dict[int, float]] = {name: {} for name in places}
    settled: dict[str, Verdict] = {}
    latest: dict[str, Verdict] = {}
    for number, look in enumerate(design.looks, start=1):
        open_claims = [claim.id for claim in design.hypotheses if claim.id not in settled]
        if not open_claims:
            break
        names = (design.control_arm, *(_treated(design, claim) for claim in open_claims))
        wanted = [(seed, name) for seed in design.seeds[: look.seeds] for name in names if seed not in values[name]]
        made = 0
        for seed, name in wanted:
            if not bill.affords(places[name]):
                break
            values[name][seed] = bill.play(places[name], seed=seed).hidden
            made += 1
        data = {name: _data(name, runs, design.seeds[: look.seeds]) for name, runs in values.items()}
        for claim in open_claims:
            latest[claim] = judge(allocate_single_round(design), claim, data, look=number, earlier=dict(settled))
        if made < len(wanted):
            break
        settled |= {claim: latest[claim] for claim in open_claims if _settles(design, latest[claim])}
    return latest, {name: list(runs.values()) for name, runs in values.items()}


def _data(name: str, runs: Mapping[int, float], seeds: Sequence[int]) -> ArmData:
    seen = {f"{name}:{seed}": (seed, runs[seed]) for seed in seeds if seed in runs}
    return ArmData({run: value for run, (_, value) in seen.items()}, {run: seed for run, (seed, _) in seen.items()})


def _settles(design: Design, verdict: Verdict) -> bool:
    claim = next(claim for claim in design.hypotheses if claim.id == verdict.hypothesis)
    return decide(rules_for(claim, design.decision_table), verdict, len(design.looks)).then != "continue"


def _treated(design: Design, claim: str) -> str:
    """Return the name of the arm that a claim is about."""
    found = next(entry for entry in design.hypotheses if entry.id == claim)
    return design.arm_with(found.variable, found.treatment).name
