"""Does an inquiry of several rounds claim more falsehoods for having asked on, when the whole loop flies it?

The loop plans, locks, runs, judges and asks the next question, in worlds with planted effects, with two fields that
matter only together, with a trap (an effect that is there in the first environment alone, while trainings with it
collapse), and with nothing; every second one has heavy tails and trainings that collapse. It is asked by the built-in
rules, by a follower of the largest estimate, or by a liar. Far fewer fly than are judged alone
(`benchmarks/inquiries.py`), so that shares are of too few to tell: what is shown here is that nothing of the loop
around the verdicts undoes what they keep.

*Kills*: the controller of one inquiry is killed at events of all its rounds, and another goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from research.planners.context import Planner
from simlab.planners import Follower, InquiringLiar, Pair
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, mean, share, silent, work
from simlab.sim_clock import SimClock
from simlab.sim_records import FlownClaim, claims_of
from simlab.sim_run import Flight, fly, rules
from simlab.suites.faults import Survived, kills, survivors
from simlab.worlds import Collapse, Effect, JointEffect, MainEffect, Planted, Scalar
from studies import StudyState
from studies.records.alpha import ALPHA

NAME = "inquiries"
QUESTION = "Does an inquiry of several rounds claim more falsehoods for having asked on?"
ANY_FALSE = "inquiries with any false difference"
MOST_FALSE = 0.05
KINDS = ("nothing", "effects", "together", "trap")
ROUNDS = (4, 12)
"""Most rounds of an inquiry: of the first, the second, the first again."""
HERE, ELSEWHERE = "arith", "guess"
TOPIC = "learning rate 3e-3 vs 1e-2 on arith"
KNOBS: Mapping[str, tuple[Scalar, ...]] = {
    "learning_rate": (0.0003, 0.001, 0.003, 0.01),
    "group_size": (2, 4, 8, 16),
    "epochs": (1, 2, 4),
    "episodes_per_step": (32, 64, 128, 256),
    "environment": (HERE, ELSEWHERE),
}
BASE: Mapping[str, Scalar] = {
    "learning_rate": 0.003, "group_size": 8, "epochs": 1, "episodes_per_step": 64, "environment": HERE,
}  # fmt: skip
PAIRS = (
    Pair("learning_rate", 0.003, 0.01),
    Pair("epochs", 1, 4),
    Pair("group_size", 4, 16),
    Pair("episodes_per_step", 64, 256),
)
EFFECT = 0.12
_EXACT = 1e-9
_SECOND_S = 2.0
"""By how much a budget may be exceeded: what is under way is ended at the next tick."""
Asker = Literal["rules", "follower", "liar"]
ASKERS: Sequence[Asker] = ("rules", "follower", "rules", "liar")
"""Who asks, in turn; the built-in rules as often as both others."""


@dataclass(frozen=True, slots=True)
class FlownInquiry:
    """What came of an inquiry."""

    kind: str
    rounds: tuple[tuple[FlownClaim, ...], ...]
    overdrawn: bool
    """Whether rounds without an effect of a kind spent more than alpha, up to the first false claim of the kind."""
    within: bool
    """Whether the budget was kept."""
    duplicates: int
    orphans: int

    @property
    def claims(self) -> list[FlownClaim]:
        """The claims of all rounds."""
        return [claim for claims in self.rounds for claim in claims]


def flights(count: int, first: int = 0, rounds: Sequence[int] = ROUNDS) -> list[Flight]:
    """Return so many inquiries, the kinds of world in turn."""
    studies = []
    for number in range(first, first + count):
        turn, kind = number // len(KINDS), KINDS[number % len(KINDS)]
        asker, most = ASKERS[turn % len(ASKERS)], rounds[turn // len(ASKERS) % len(rounds)]
        ugly = bool((number % len(KINDS) + turn + turn // len(ASKERS)) % 2)
        more = MainEffect("learning_rate", {0.01: 0.15}) if kind == "trap" else None  # those of the treatment alone
        world = Planted(
            seed=30_000_000 + number, knobs=KNOBS, base=BASE, effects=_effects(kind, 1 if turn % 2 else -1), centre=0.5,
            seed_sd=0.03, tails="t3" if ugly else "normal", steps=20,
            collapse=Collapse(0.1 if ugly else 0.0, more, lost=(0.6, 1.3)),
        )  # fmt: skip
        planner = partial(planner_of, asker)
        name, asks = f"inquiries-{number}", {"rounds": most}
        studies.append(Flight(name, TOPIC, world, planner=planner, budget_s=48 * 3600.0, asks=asks))
    return studies


def planner_of(asker: Asker, clock: SimClock) -> Planner:
    """Return who asks."""
    if asker == "rules":
        return rules(clock)
    return (Follower if asker == "follower" else InquiringLiar)(PAIRS, HERE)


def _effects(kind: str, sign: int) -> tuple[Effect, ...]:
    match kind:
        case "effects":
            return (
                MainEffect("learning_rate", {0.01: sign * EFFECT}),
                MainEffect("group_size", {2: -EFFECT / 2, 16: EFFECT}),
            )
        case "together":
            return (JointEffect({"learning_rate": 0.01, "group_size": 16}, EFFECT),)
        case "trap":
            return (JointEffect({"learning_rate": 0.01, "environment": HERE}, sign * EFFECT),)
        case _:
            return ()


def inquired(flight: Flight) -> FlownInquiry:
    """Fly an inquiry and keep what counts."""
    landed = fly(flight)
    state, number = landed.state, int(flight.name.split("-")[1])
    locked = [each for each in state.rounds if each.design is not None]
    found = tuple(tuple(claims_of(landed, each)) for each in locked)
    return FlownInquiry(
        kind=KINDS[number % len(KINDS)],
        rounds=found,
        overdrawn=any(overdrawn(locked, found, kind) for kind in (0, 1)),
        within=state.worked_s <= state.budget_s + _SECOND_S,
        duplicates=len(landed.duplicates),
        orphans=len(landed.orphans),
    )


def overdrawn(rounds: Sequence[StudyState], found: Sequence[Sequence[FlownClaim]], kind: int) -> bool:
    """Return whether rounds with a null of a kind (0: difference, 1: equivalence) spent more than alpha.

    Counted up to the first false claim of the kind, by the levels that stand in the locks.
    """
    spent = 0.0
    for state, claimed in zip(rounds, found, strict=True):
        place = None if state.design is None else state.design.inquiry
        levels = (ALPHA, ALPHA) if place is None else (place.difference, place.equivalence)
        nulls = (claim.truth == 0 if kind == 0 else _differs(claim) for claim in claimed)
        spent += levels[kind] if any(nulls) else 0.0
        if any(claim.false if kind == 0 else claim.falsely_equivalent for claim in claimed):
            break
    return spent > ALPHA * (1 + _EXACT)


def _differs(claim: FlownClaim) -> bool:
    return claim.promised is not None and abs(claim.truth) > claim.promised - _EXACT


def killed(number: int) -> Flight:
    """Return an inquiry of effects, of three rounds."""
    [flight] = flights(1, KINDS.index("effects") + len(KINDS) * len(ASKERS) * 2 * number, (3,))
    return replace(flight, name=f"inquiries-killed-{number}")


def figures(records: Sequence[FlownInquiry], survived: Sequence[Survived]) -> list[Measured]:
    """Return what the inquiries amount to."""
    judged = [one for one in records if one.claims]
    everything = [claim for one in judged for claim in one.claims]
    return [
        share(ANY_FALSE, [_false(one) for one in judged], Bar("at most", MOST_FALSE)),
        share("inquiries with any false equivalence",
              [any(claim.falsely_equivalent for claim in one.claims) for one in judged], Bar("at most", MOST_FALSE)),
        share("inquiries of nothing with any false difference",
              [_false(one) for one in judged if one.kind == "nothing"], Bar("at most", MOST_FALSE)),
        share("differences found, of all claims on one", [claim.found for claim in everything if claim.truth != 0]),
        mean("rounds of an inquiry", [float(len(one.rounds)) for one in judged]),
        share("inquiries in which a ledger was overdrawn", [one.overdrawn for one in judged], Bar("at most", 0.0)),
        share("inquiries beyond their budget", [not one.within for one in records], Bar("at most", 0.0)),
        share("inquiries with a duplicate or an orphan", [one.duplicates + one.orphans > 0 for one in records],
              Bar("at most", 0.0)),
        share("same locks and verdicts of all rounds after a kill", [one.same for one in survived],
              Bar("at least", 1.0)),
        share("kills with a duplicate or an orphan", [one.duplicates + one.orphans > 0 for one in survived],
              Bar("at most", 0.0)),
    ]  # fmt: skip


def _false(one: FlownInquiry) -> bool:
    return any(claim.false for claim in one.claims)


def rows(records: Sequence[FlownInquiry]) -> list[Mapping[str, Any]]:
    """Return a row for each round of the inquiries, by its number."""
    lines: list[Mapping[str, Any]] = []
    for number in range(max((len(one.rounds) for one in records), default=0)):
        claims = [one.rounds[number] for one in records if len(one.rounds) > number]
        claimed = [claim for own in claims for claim in own]
        verdicts = {name: sum(claim.verdict == name for claim in claimed)
                    for name in ("supported", "refuted", "equivalent", "inconclusive", "invalid")}  # fmt: skip
        lines.append({
            "round": number + 1, "inquiries": len(claims), **verdicts,
            "false differences": sum(claim.false for claim in claimed),
            "false equivalences": sum(claim.falsely_equivalent for claim in claimed),
            "power": share("", [claim.found for claim in claimed if claim.truth != 0]).measured(),
        })  # fmt: skip
    return lines


def measure(count: int, number: int, every: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many inquiries, kill the controllers of `number` at every `every`-th event, and count."""
    records = work(NAME, inquired, flights(count), workers=workers, tell=tell)
    wanted = [kill for place in range(number) for kill in kills(killed, place, every)]
    figured = figures(records, survivors(NAME, wanted, workers, tell))
    return SuiteOutcome(NAME, QUESTION, len(records) + len(wanted), figured, rows(records))
