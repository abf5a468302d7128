"""Is a question that cannot be afforded refused with an alternative that works, and is no budget exceeded?

*Tenths*: questions with a tenth of the wall clock that they need. They must be refused. The price in the refusal, taken
at its word in the same home, must be enough: where the noise is known for the design that was asked for, else for a
pilot and what it leads to.
*Slow*: runs that take a multiple of their price, as neighbours slow the machine. The study must end within its budget
and say what it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from research.text import parse_budget
from simlab.scores import Bar, Measured, Progress, SuiteOutcome, mean, share, silent, work
from simlab.sim_records import FlightRecord, flown, record
from simlab.sim_run import Flight, fly_in, scratch
from simlab.worlds import ASKS

NAME = "budget"
QUESTION = "Is what cannot be afforded refused with a price that works, and is no budget exceeded?"
POLLING_S = 2.0
"""What a study may take beyond its budget: an interval between two looks at the clock."""
MOST_TRIES = 4
UNKNOWN = "say how many it takes"
"""In a refusal before the noise is known: its price is the least that any noise needs."""
_FLAG = re.compile(r"--(budget|max-runs) ([0-9a-z.]+)")


@dataclass(frozen=True, slots=True)
class BudgetQuestion:
    """A question with too little budget, and again, in the same home, with what each refusal named."""

    tries: tuple[FlightRecord, ...]

    @property
    def first(self) -> FlightRecord:
        """The question with too little."""
        return self.tries[0]

    @property
    def informed(self) -> FlightRecord | None:
        """The question at the first price that was named when the noise was known; None where none was."""
        known = [n for n, one in enumerate(self.tries[:-1]) if one.refused is not None and UNKNOWN not in one.refused]
        return self.tries[known[0] + 1] if known else None


def tenths(count: int) -> list[Flight]:
    """Return questions that are given a tenth of what they need, by time or by runs."""
    studies = []
    for number in range(count):
        flight = _flight(f"tenth-{number}", number)
        if number % 4 == 3:
            studies.append(replace(flight, max_runs=1))
        else:
            studies.append(replace(flight, budget_s=round(_price(flight) / flight.parallel)))
    return studies


def _price(flight: Flight) -> float:
    """Return the seconds of one run that has the machine to itself."""
    return flight.world.seconds({}, flight.world.steps)


def slow(count: int) -> list[Flight]:
    """Return studies whose runs take up to four times their price."""
    studies = []
    for number in range(count):
        flight = _flight(f"slow-{number}", number, crowding=(1.0, 3.0)[number % 2])
        budget_s = round(_price(flight) * (8, 12, 20)[number % 3])
        studies.append(replace(flight, budget_s=budget_s, parallel=(2, 3)[number % 2]))
    return studies


def _flight(name: str, number: int, crowding: float = 0.0) -> Flight:
    """Return a study whose noise every other time is known."""
    ask = ASKS[number % len(ASKS)]
    others = {"seed_sd": 0.03, "seconds_per_step": 30.0, "crowding": crowding, "steps": 8}
    world = ask.planted(5_000_000 + number, 0.12, **others)
    return Flight(name, ask.topic, world, bank_world=None if (number + number // 4) % 2 else world)


def ask(flight: Flight) -> BudgetQuestion:
    """Fly a question; as long as it is refused, fly it again in the same home with what it names first."""
    with scratch() as folder:
        tries = [record(fly_in(flight, folder))]
        for number in range(1, MOST_TRIES):
            named = {flag: value.rstrip(".") for flag, value in reversed(_FLAG.findall(tries[-1].refused or ""))}
            if not named:
                break
            again = replace(
                flight, name=f"{flight.name}-again-{number}",
                budget_s=parse_budget(named["budget"]) if "budget" in named else flight.budget_s,
                max_runs=int(named["max-runs"]) if "max-runs" in named else flight.max_runs,
            )  # fmt: skip
            tries.append(record(fly_in(again, folder)))
        return BudgetQuestion(tuple(tries))


def overspent(found: FlightRecord) -> float:
    """Return the seconds that a study worked beyond its budget."""
    return max(0.0, found.worked_s - found.budget_s)


def figures(asked: Sequence[BudgetQuestion], slow: Sequence[FlightRecord]) -> list[Measured]:
    """Return what the flights amount to."""
    flown = [*slow, *(one for each in asked for one in each.tries)]
    worst = max((overspent(one) for one in flown), default=0.0)
    informed = [one.informed for one in asked if one.informed is not None]
    return [
        share("too dear questions refused", [one.first.refused is not None for one in asked], Bar("at least", 1.0)),
        share("refusals that launched nothing", [one.first.launches == 0 for one in asked], Bar("at least", 1.0)),
        share("refusals that name a price", [len(one.tries) > 1 for one in asked], Bar("at least", 1.0)),
        share("prices named with the noise known that are enough", [_worked(one) for one in informed],
              Bar("at least", 1.0)),
        share("questions answered in the end, by following what was named", [_worked(one.tries[-1]) for one in asked],
              Bar("at least", 1.0)),
        mean("times a question had to be asked", [float(len(one.tries)) for one in asked]),
        share("studies beyond their budget", [overspent(one) > POLLING_S for one in flown], Bar("at most", 0.0)),
        Measured("largest overspending (s)", worst, bar=Bar("at most", POLLING_S), percent=False, of=len(flown)),
        share("studies of slow runs that end with every run accounted for",
              [one.accounted_runs == one.launched_runs for one in slow], Bar("at least", 1.0)),
        mean("share of the budget used by slow studies", [one.worked_s / one.budget_s for one in slow], percent=True),
    ]  # fmt: skip


def _worked(found: FlightRecord) -> bool:
    """Return whether a study ran to its verdicts within its budget."""
    return found.status == "concluded" and bool(found.claims) and overspent(found) <= POLLING_S


def measure(count: int, *, workers: int = 1, tell: Progress = silent) -> SuiteOutcome:
    """Fly so many questions of either kind and count."""
    asked = work(f"{NAME}, a tenth", ask, tenths(count), workers=workers, tell=tell)
    late = work(f"{NAME}, slow", flown, slow(count), workers=workers, tell=tell)
    return SuiteOutcome(NAME, QUESTION, 2 * count, figures(asked, late))
