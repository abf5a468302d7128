"""The studies that go on the long haul, and what has to be the same of one in any weather."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from simlab.flights.flight import Flight
from simlab.haul.voyage import Voyage
from simlab.haul.weather import DAY_S
from simlab.worlds.world import Hill, MainEffect, Planted, Scalar
from studies import EventType

DAYS = 10.0
"""About what the study takes at peace, on two places at once."""
BUDGET_DAYS = 30.0
TOPIC = (
    "What are the three best values of learning rate, group size, number of epochs and temperature on the guessing "
    "game? Replicate it on arith."
)
"""Asks for every stage: A/A runs, a screen, a confirmation in looks, and a replication."""
ASKS: Mapping[str, Any] = {"effect": 0.04, "power": 0.8, "looks": 2, "episodes": 512}
KNOBS: Mapping[str, tuple[Scalar, ...]] = {
    "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "group_size": (4, 8, 16, 32),
    "epochs": (1, 2, 4),
    "temperature": (0.7, 1.0, 1.3),
}
BASE: Mapping[str, Scalar] = {"learning_rate": 1e-3, "group_size": 8, "epochs": 1, "temperature": 1.0}
EFFECTS = (Hill("learning_rate", 3e-3, 0.02), MainEffect("epochs", {2: 0.04, 4: 0.05}))
_STEPS, _STEP_S = 8, 1380.0
_HANDLES: Mapping[EventType, tuple[str, ...]] = {
    EventType.STUDY_CREATED: (),
    EventType.NOISE_PLANNED: (),
    EventType.DESIGN_LOCKED: (),
    EventType.SCREEN_DECIDED: (),
    EventType.STUDY_CONCLUDED: (),
    EventType.HYPOTHESIS_PROPOSED: ("id",),
    EventType.RUN_PLANNED: ("run_id",),
    EventType.ATTEMPT_LAUNCHED: ("run_id", "attempt"),
    EventType.ATTEMPT_ENDED: ("run_id", "attempt"),
    EventType.RUN_COLLECTED: ("run_id",),
    EventType.MEASUREMENT_RECORDED: ("run_id", "key"),
    EventType.VERDICT_COMPUTED: ("hypothesis", "look", "phase"),
}
"""What may happen once only, and to what: the fields of its payload that name that."""


def voyage_of(*, planted: bool = True, days: float = DAYS, budget_days: float = BUDGET_DAYS) -> Flight:
    """Return a study of about so many days; one of fields that do nothing where nothing is `planted`."""
    world = Planted(
        seed=7,
        knobs=KNOBS,
        base=BASE,
        effects=EFFECTS if planted else (),
        seed_sd=0.05,
        steps=_STEPS,
        seconds_per_step=_STEP_S * days / DAYS,
        startup_s=0.0,
    )
    return Flight("haul", TOPIC, world, budget_s=budget_days * DAY_S, asks=ASKS, report=True)


def twice(voyage: Voyage) -> list[str]:
    """Return what happened more than once and may not."""
    seen = Counter(
        (event.type.value, *(str(event.payload[name]) for name in _HANDLES[event.type]))
        for event in voyage.events
        if event.type in _HANDLES
    )
    found = [" ".join(handle) for handle, count in seen.items() if count > 1]
    return found + [f"started {name}" for name, count in voyage.starts.items() if count > 1]


def outcome(voyage: Voyage) -> dict[str, Any]:
    """Return what a study found: its design, its runs with their values, its verdicts and what was decided by them."""
    state = voyage.state
    design = state.design
    return {
        "status": state.status,
        "design": None if design is None else design.model_dump(mode="json"),
        "runs": {" ".join(map(str, name)): values for name, values in sorted(_runs(voyage))},
        "verdicts": {verdict.hypothesis: verdict.model_dump(mode="json") for verdict in state.verdicts},
        "decisions": [(d.rule, d.action, d.hypothesis, d.look) for d in state.decisions],
    }


def _runs(voyage: Voyage) -> Iterator[tuple[tuple[str, str, int], dict[str, float] | str]]:
    for run in voyage.state.runs.values():
        values = {key: found.value for key, found in sorted(run.measurements.items())}
        yield (run.spec.phase, run.spec.arm, run.spec.seed), run.invalid[0] if run.invalid else values


def differences(calm: Voyage, rough: Voyage) -> list[str]:
    """Return where a study ended otherwise than the same one at peace."""
    return list(_differing("", outcome(calm), outcome(rough)))


def _differing(place: str, calm: Any, rough: Any) -> Iterator[str]:
    if isinstance(calm, dict) and isinstance(rough, dict):
        for name in {**calm, **rough}:
            yield from _differing(f"{place}/{name}", calm.get(name), rough.get(name))
    elif calm != rough:
        yield f"{place}: {calm} at peace, {rough}"
