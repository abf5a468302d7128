"""The design compiler: what a planner wishes becomes a design that can be locked, or is refused with a reason.

A compiled design is sound (every arm is a valid job that differs from the control in one declared variable) and
affordable by its own price. Seeds come from the caller's source, the same for all arms; no planner sees them. The
compiler is pure: it runs nothing, and knows of power only that more seeds are better (5 wanted, 3 preferred, 2 the
least a test needs).
"""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from research.arms import Comparison, Scalar, common_controls, compare, variable_value
from research.budget import format_flag, format_seconds
from research.errors import DesignRefused
from research.planner.actions import LEAST_SEEDS, Action, Conclude, Propose, ProposeDesign, ProposedHypothesis
from research.pricing import EVALUATION_EPISODES, Pricing
from research.reward_code import check_reward
from studies.records import REWARD, Budget, Design, Hypothesis, Metric, Prediction, Price
from swarm.environments.registry import environments
from swarm.job import Job

PREFERRED_SEEDS = 3
PREDICTION_LEVEL = 0.8
_SHORTEST_STEPS = 5
_MOST_REDRAWS = 100


def accept_hypotheses(proposal: Propose) -> tuple[Hypothesis, ...]:
    """Return the proposal's hypotheses as records `h1`, `h2`, ...; raise DesignRefused if one cannot be tested."""
    accepted = tuple(_hypothesis(f"h{index}", entry) for index, entry in enumerate(proposal.hypotheses, start=1))
    common_controls(accepted)
    proposed_code(proposal)
    return accepted


def proposed_code(proposal: Propose) -> dict[str, str]:
    """Return the source of each reward a proposal names; raise DesignRefused where it is missing or not well formed."""
    code: dict[str, str] = {}
    for entry in proposal.hypotheses:
        if entry.variable == REWARD:
            code[str(entry.treatment)] = check_reward(entry.code or "")
        elif entry.code:
            raise DesignRefused(
                f"code: expected null beside the variable {entry.variable}; found a source; leave it out"
            )
    return code


def compile_design(
    question: str,
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    *,
    price: Pricing,
    budget: Budget,
    draw_seed: Callable[[], int],
    seconds_left: float | None = None,
    exclusions: tuple[str, ...] = (),
    base: Job | None = None,
    code: Mapping[str, str] | None = None,
) -> Design:
    """Return the design that tests `hypotheses` as proposed, with as many seeds (up to the wanted) as are affordable.

    `draw_seed` gives the seeds (see `seed_source`); `seconds_left` is what remains of the budget's wall clock
    (default: all of it); `exclusions` are the INVALID codes that drop a run; `base` is the job under all arms
    (default: `Job()`); `code` is what `proposed_code` returned for the hypotheses. Raises DesignRefused.
    """
    comparison = _comparison(hypotheses, proposal, base)
    seeds = _affordable_seeds(comparison, proposal.seeds_per_arm, _Purse(price, budget, seconds_left))
    return Design(
        question=question,
        environment=proposal.environment,
        base_job=comparison.base.model_dump(mode="json", exclude={"seed", "tracking"}),
        arms=comparison.arms,
        control_arm=comparison.control_arm,
        hypotheses=tuple(hypotheses),
        seeds=_distinct(draw_seed, seeds),
        metric=_metric(proposal.environment),
        exclusions=exclusions,
        budget=budget,
        price=_price(seeds * len(comparison.arms), comparison, price),
        code=code or {},
    )


def refusal(
    action: Action,
    hypotheses: Sequence[Hypothesis],
    *,
    price: Pricing,
    budget: Budget,
    seconds_left: float | None = None,
    base: Job | None = None,
    code_allowed: bool = False,
) -> str | None:
    """Return why an action would be refused, or None; it draws no seed. `hypotheses` are those accepted before.

    `code_allowed` says whether the study's runs are in containers, so that a reward function may be proposed.
    """
    purse = _Purse(price, budget, seconds_left)
    try:
        match action:
            case Propose():
                _refuse_code(action, code_allowed)
                _testable_at_all(accept_hypotheses(action), purse, base)
            case ProposeDesign():
                _affordable_seeds(_comparison(hypotheses, action, base), action.seeds_per_arm, purse)
            case Conclude():
                pass
    except DesignRefused as error:
        return error.message
    return None


def seed_source(study: str, secret: bytes) -> Callable[[], int]:
    """Return the seeds of a study, one a call: 31 bits of HMAC-SHA256(secret, "study:index"), index 0, 1, ...

    With a secret that is drawn when the design is compiled, nobody can know the seeds before the design is locked.
    """
    index = itertools.count()

    def draw() -> int:
        code = hmac.digest(secret, f"{study}:{next(index)}".encode(), "sha256")
        return int.from_bytes(code[:4], "big") >> 1

    return draw


class _Unaffordable(DesignRefused):
    """Sound, but too dear: `need` seconds for the preferred seeds; `shorter` steps would do, if any would."""

    def __init__(self, message: str, *, need: float, shorter: int | None) -> None:
        super().__init__(message)
        self.need = need
        self.shorter = shorter


@dataclass(frozen=True, slots=True)
class _Purse:
    """What may be spent, and what things cost."""

    price: Pricing
    budget: Budget
    seconds_left: float | None

    @property
    def left(self) -> float:
        total = self.budget.wall_clock_s
        return total if self.seconds_left is None else min(total, self.seconds_left)

    def affords(self, runs: int, seconds_per_run: float) -> bool:
        return not self.lacks_runs(runs) and self.price.total(runs, seconds_per_run) <= self.left

    def lacks_runs(self, runs: int) -> bool:
        return self.budget.max_runs is not None and runs > self.budget.max_runs


def _refuse_code(action: Propose, allowed: bool) -> None:
    if not allowed and any(entry.variable == REWARD or entry.code for entry in action.hypotheses):
        raise DesignRefused(
            "expected hypotheses about job fields; found a reward function, which is code and runs in containers only; "
            "vary job fields, or start the study with --sandbox docker"
        )


def _hypothesis(name: str, entry: ProposedHypothesis) -> Hypothesis:
    return Hypothesis(
        id=name,
        statement=entry.statement,
        mechanism=entry.mechanism,
        variable=entry.variable,
        control=variable_value(entry.variable, entry.control),
        treatment=variable_value(entry.variable, entry.treatment),
        direction=entry.direction,
        prediction=Prediction(
            low=entry.predicted_low,
            high=entry.predicted_high,
            level=PREDICTION_LEVEL,
            probability=entry.probability,
        ),
    )


def _comparison(hypotheses: Sequence[Hypothesis], proposal: ProposeDesign, base: Job | None) -> Comparison:
    if not hypotheses:
        raise DesignRefused("expected hypotheses before a design; found none; propose some first")
    constants: dict[str, Scalar] = {}
    for constant in proposal.constants:
        if constant.field in constants or constant.field == "steps":
            raise DesignRefused(f"constants name {constant.field!r} twice, or beside `steps`; give each field once")
        constants[constant.field] = constant.value
    steps_compared = {entry.control for entry in hypotheses if entry.variable == "steps"}
    if proposal.steps is not None and proposal.steps not in steps_compared:
        constants["steps"] = proposal.steps
    return compare(proposal.environment, hypotheses, constants, base)


def _testable_at_all(hypotheses: Sequence[Hypothesis], purse: _Purse, base: Job | None) -> None:
    """Refuse hypotheses that the least of designs could not test in any environment, however short the training."""
    refusals = []
    for name in environments():
        try:
            _affordable_seeds(compare(name, hypotheses, {}, base), PREFERRED_SEEDS, purse)
        except _Unaffordable as error:
            if error.shorter is not None:
                return
            refusals.append(error)
        except DesignRefused:
            return  # unsound with the default constants; the design may choose others, and is judged then
        else:
            return
    fewer = "; or propose fewer hypotheses" if len(hypotheses) > 1 else ""
    raise DesignRefused(max(refusals, key=lambda error: error.need).message + fewer)


def _affordable_seeds(comparison: Comparison, wanted: int, purse: _Purse) -> int:
    seconds, arms = _slowest(comparison.jobs, purse.price), len(comparison.arms)
    for seeds in range(wanted, LEAST_SEEDS - 1, -1):
        if purse.affords(seeds * arms, seconds):
            return seeds
    shorter = _shorter_steps(comparison, purse)
    hint = f"; or train {shorter} steps instead of {comparison.base.steps}" if shorter else ""
    least = min(PREFERRED_SEEDS, wanted)
    need = purse.price.total(least * arms, seconds)
    raise _Unaffordable(_alternative(arms, least, seconds, purse) + hint, need=need, shorter=shorter)


def _slowest(jobs: Sequence[Job], price: Pricing) -> float:
    return max(price.seconds_per_run(job) for job in jobs)


def _alternative(arms: int, seeds: int, seconds: float, purse: _Purse) -> str:
    """Say what `seeds` runs of each arm cost, what there is, and which budget would do."""
    runs, price = seeds * arms, purse.price
    need, spent = price.total(runs, seconds), purse.budget.wall_clock_s - purse.left
    spent_text = f" ({format_seconds(spent)} of it spent)" if spent >= 1 else ""
    flags = [f"--budget {format_flag(need + spent)}"] if need > purse.left else []
    flags += [f"--max-runs {runs}"] if purse.lacks_runs(runs) else []
    limit = f" and {purse.budget.max_runs} runs" if purse.budget.max_runs is not None else ""
    return (
        f"{seeds} seeds x {arms} arms ({runs} runs) need about {format_seconds(need)} on this machine "
        f"({format_seconds(seconds)} a run, {price.parallel} at once); the budget is "
        f"{format_seconds(purse.budget.wall_clock_s)}{spent_text}{limit}: use {' '.join(flags)}"
    )


def _shorter_steps(comparison: Comparison, purse: _Purse) -> int | None:
    """Return the most steps, of halves of those wanted, with which the least number of seeds is affordable."""
    if any("steps" in arm.overrides for arm in comparison.arms):
        return None
    steps = comparison.base.steps // 2
    while steps >= _SHORTEST_STEPS:
        jobs = [job.model_copy(update={"steps": steps}) for job in comparison.jobs]
        if purse.affords(LEAST_SEEDS * len(jobs), _slowest(jobs, purse.price)):
            return steps
        steps //= 2
    return None


def _distinct(draw_seed: Callable[[], int], count: int) -> tuple[int, ...]:
    seeds: dict[int, None] = {}
    for _ in range(count + _MOST_REDRAWS):
        seeds[draw_seed()] = None
        if len(seeds) == count:
            return tuple(seeds)
    raise ValueError(f"the source of seeds gave fewer than {count} different ones in {count + _MOST_REDRAWS} draws")


def _metric(environment: str) -> Metric:
    measures = environments()[environment].measures
    meaning = f"share of {EVALUATION_EPISODES} hidden episodes, played after the last step, in which {measures}"
    return Metric(meaning=meaning, episodes=EVALUATION_EPISODES)


def _price(runs: int, comparison: Comparison, price: Pricing) -> Price:
    seconds = _slowest(comparison.jobs, price)
    return Price(
        runs=runs,
        parallel=price.parallel,
        seconds_per_run=seconds,
        total_s=price.total(runs, seconds),
        basis=price.basis,
    )
