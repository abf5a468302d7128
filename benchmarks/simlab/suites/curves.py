"""Is a metric that is read off the hidden curve judged rightly, through the whole loop?

Worlds whose runs have a hidden curve (`simlab.curves`), and studies that ask for another metric than
success: the area under it, whole and below 0.7, the training episodes to 0.7, and the share of trainings that collapse.
*Null*: the arms are equal in the metric. *Effect*: the treatment is better by the smallest effect of interest, which is
the margin of equivalence as well. *Equivalence*: it is better by a fifth of that, among runs so quiet that *equivalent*
can be told. *Ugly*: nothing is planted in one of the mixtures. A row of one metric is of too few studies to tell much;
what is pooled over metrics tells more, and may hide that one of them is worse than the others. How often a verdict on
each of them is wrong is measured of thousands of studies by the verdict alone (`benchmarks/metric_verdicts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from simlab.curves import CurveArm, CurveWorld, PlantedCurves, Quantity, drawn
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, mean, share, silent, work
from simlab.sim_records import FlightRecord, FlownClaim, coverage, flown
from simlab.sim_run import Flight
from simlab.worlds import ASKS, ComparisonTopic

NAME = "curves"
QUESTION = "Is a metric that is read off the hidden curve judged rightly, through the whole loop?"
Kind = Literal["null", "effect", "ugly", "equivalence"]
KINDS: Sequence[Kind] = ("null", "effect", "ugly", "equivalence")
MOST_WRONG = 0.05
LEAST_POWER, LIKELY_POWER = 0.75, 0.80
MOST_SIGN_ERRORS, LIKELY_SIGN_ERRORS = 0.01, 0.005
BUDGET_S = 12 * 3600.0
_CLEAN = CurveArm(spread=0.06, top_sd=0.015)
"""Quiet enough that the usual smallest effects are affordable."""
_QUIET = CurveArm(spread=0.04, top_sd=0.01)
"""So quiet that a difference inside the margin is told from the margin."""
_INSIDE = 0.2
"""Of the smallest effect, what is planted well inside the margin."""
_SAFE, _RISKY = 0.1, 0.7
"""Rates of collapse: a difference that is seen with few enough seeds."""
_SELDOM = 0.2
"""The rate from which one well inside the margin is planted."""
_NOTHING: Sequence[Sequence[Kind]] = (("null",), ("ugly",), ("null", "ugly"))
"""Kinds without a difference, and both together: a false claim in either is the same mistake."""
_WORLDS, _PER_KIND = 40_000_000, 100_000


@dataclass(frozen=True, slots=True)
class AskedCurve:
    """A metric that is asked for, and what is planted."""

    quantity: Quantity
    asks: Mapping[str, Any]
    """As a study's settings have it."""
    effect: float
    """The smallest effect of interest, in shares of the range, of a treatment that is better."""
    over_all: bool = False


ASKED: Mapping[str, AskedCurve] = {
    "area": AskedCurve("area", {"metric": {"kind": "area"}}, 0.05),
    "area:0.7": AskedCurve("area:0.7", {"metric": {"kind": "area", "threshold": 0.7}}, 0.035),
    "episodes:0.7": AskedCurve("episodes", {"metric": {"kind": "episodes", "threshold": 0.7}}, -0.1, over_all=True),
    "collapse": AskedCurve("collapse", {"metric": {"kind": "collapse"}, "effect": 0.6}, _SAFE - _RISKY, over_all=True),
}
_PAIRS: Sequence[ComparisonTopic] = tuple(
    ask for ask in ASKS if len(ask.values) == 2 and ask.field not in ("group_size", "minibatches")
)
"""Fields that change nothing of how many episodes a step has."""


def flights(count: int, first: int = 0, metrics: Sequence[str] = tuple(ASKED)) -> list[Flight]:
    """Return so many studies of each metric and kind, in turn."""
    numbers = range(first, first + count)
    return [_flight(metric, kind, number) for number in numbers for metric in metrics for kind in KINDS]


def _flight(metric: str, kind: Kind, number: int) -> Flight:
    asked, ask = ASKED[metric], _PAIRS[number % len(_PAIRS)]
    place = list(ASKED).index(metric) * len(KINDS) + KINDS.index(kind)
    world = PlantedCurves(
        seed=_WORLDS + _PER_KIND * place + number,
        ask=ask,
        quantity=asked.quantity,
        arms=_arms(asked, kind, number),
        effect={"effect": 1.0, "equivalence": _INSIDE}.get(kind, 0.0) * asked.effect,
        over_all=asked.over_all,
    )
    return Flight(f"curves-{place}-{number}", ask.topic, world, asks=asked.asks, budget_s=BUDGET_S)


def _arms(asked: AskedCurve, kind: Kind, number: int) -> CurveWorld:
    if kind == "ugly":
        return drawn(number)
    arm = _QUIET if kind == "equivalence" else _CLEAN
    if asked.quantity == "collapse":
        arm = replace(arm, collapses=_SELDOM if kind == "equivalence" else _RISKY)
    return CurveWorld(arm, arm)


def grouped(records: Sequence[FlightRecord]) -> dict[tuple[str, Kind], list[FlightRecord]]:
    """Return the records of each metric and kind that has any."""
    found: dict[tuple[str, Kind], list[FlightRecord]] = {}
    for record in records:
        metric, kind = divmod(int(record.flight.split("-")[1]), len(KINDS))
        found.setdefault((list(ASKED)[metric], KINDS[kind]), []).append(record)
    return {key: found[key] for key in ((metric, kind) for metric in ASKED for kind in KINDS) if key in found}


def figures(records: Sequence[FlightRecord]) -> list[Measured]:
    """Return what the records amount to: pooled over metrics, then of each one."""
    groups = {key: _claims(found) for key, found in grouped(records).items()}
    each = [figure for (metric, kind), claims in groups.items() if claims for figure in _of(metric, kind, claims)]
    return [*_pooled(groups), *each]


def _pooled(groups: Mapping[tuple[str, Kind], Sequence[FlownClaim]]) -> list[Measured]:
    """Return the shares over all metrics, of kinds together that tell the same, and the intervals of all kinds.

    An interval of a difference of rates is exact, and holds the truth more often than it states: it is counted apart.
    """

    def of(*kinds: Kind) -> list[FlownClaim]:
        return [claim for (_, kind), found in groups.items() if kind in kinds for claim in found]

    rates = [claim for (metric, _), found in groups.items() if metric == "collapse" for claim in found]
    means = [claim for (metric, _), found in groups.items() if metric != "collapse" for claim in found]
    found = [
        *(_false(f"all metrics, {' and '.join(kinds)}", of(*kinds)) for kinds in _NOTHING),
        _equivalent("all metrics, null and equivalence", of("null", "equivalence")),
        _power("all metrics, effect", of("effect")),
        _sign_errors("all metrics, effect and equivalence", of("effect", "equivalence")),
        _at_margin("all metrics, effect", of("effect")),
        _covered("areas and times, all kinds", means),
        _covered("collapse, all kinds", rates),
    ]
    return [figure for figure in found if figure.of]


def _of(metric: str, kind: Kind, claims: Sequence[FlownClaim]) -> list[Measured]:
    what = f"{metric}, {kind}"
    match kind:
        case "effect":
            shares = [_power(what, claims), _sign_errors(what, claims), _at_margin(what, claims)]
        case "equivalence":
            shares = [_equivalent(what, claims), _sign_errors(what, claims)]
        case _:
            shares = [_false(what, claims), _equivalent(what, claims)]
    return [*shares, _covered(what, claims)]


def _false(what: str, claims: Sequence[FlownClaim]) -> Measured:
    return share(f"{what}: false claims", [claim.false for claim in claims], Bar("at most", MOST_WRONG))


def _equivalent(what: str, claims: Sequence[FlownClaim]) -> Measured:
    return share(f"{what}: called equivalent", [claim.verdict == "equivalent" for claim in claims])


def _power(what: str, claims: Sequence[FlownClaim]) -> Measured:
    bar = Bar("at least", LEAST_POWER, likely=LIKELY_POWER)
    return share(f"{what}: power at the promised effect", [claim.found for claim in claims], bar)


def _sign_errors(what: str, claims: Sequence[FlownClaim]) -> Measured:
    bar = Bar("at most", MOST_SIGN_ERRORS, likely=LIKELY_SIGN_ERRORS)
    return share(f"{what}: sign errors", [claim.false for claim in claims], bar)


def _at_margin(what: str, claims: Sequence[FlownClaim]) -> Measured:
    wrong = [claim.falsely_equivalent for claim in claims]
    return share(f"{what}: called equivalent at the margin", wrong, Bar("at most", MOST_WRONG))


def _covered(what: str, claims: Sequence[FlownClaim]) -> Measured:
    return coverage(f"{what}: intervals that hold the truth, beside their stated level", claims)


def rows(records: Sequence[FlightRecord]) -> list[Mapping[str, Any]]:
    """Return a row for each metric and kind."""
    return [_row(metric, kind, found) for (metric, kind), found in grouped(records).items()]


def _row(metric: str, kind: Kind, records: Sequence[FlightRecord]) -> Mapping[str, Any]:
    claims, refused = _claims(records), [record.refused for record in records if record.refused is not None]
    return {
        "metric": metric,
        "planted": kind,
        "studies": len(records),
        "refused": len(refused),
        "inconclusive": share("", [claim.verdict == "inconclusive" for claim in claims]).measured(),
        "invalid": sum(claim.verdict == "invalid" for claim in claims),
        "seeds": mean("", [max(claim.n) for claim in claims]).measured(),
        "last refusal": refused[-1] if refused else "",
    }


def _claims(records: Sequence[FlightRecord]) -> list[FlownClaim]:
    return [claim for record in records for claim in record.claims]


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many studies of each metric and kind, and count."""
    records = work(NAME, flown, flights(count), workers=workers, tell=tell)
    return SuiteOutcome(NAME, QUESTION, len(records), figures(records), rows(records))
