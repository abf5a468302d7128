"""A claim with mediators through the shipped loop: proposed, locked, measured, judged, shown, verified."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from simlab.sim_clock import SimClock
from simlab.sim_run import Flight, FlightResult, fly_in, scratch
from simlab.suites.traps import ASK, world

from research.planners.endpoint import OpenAiEndpoint
from research.planners.llm import LlmPlanner
from studies import EventLog
from studies.log.event import row_of
from studies.proof import verify
from tests.research.planners.flights import KEY, MODEL, Script, proposal
from tests.research.planners.scripted_endpoint import scripted_endpoint

pytestmark = pytest.mark.slow
NAMES = ("logged:critic/success/mean:last", "logged:actor/entropy:first5:0..3", "logged:critic/rewards/mean:slope")


def fly_proposal(asked: dict[str, Any], folder: Path) -> FlightResult:
    """Fly two rounds, the first of which asks this, and verify what came of it."""
    with scripted_endpoint(Script({(1, "propose"): [asked]})) as endpoint:
        flight = Flight(
            "by-what", ASK.topic, world(1, effect=0.2), budget_s=40 * 3600.0, asks={"rounds": 2}, report=True,
            planner=lambda clock: LlmPlanner(
                MODEL, OpenAiEndpoint(KEY, endpoint.url), patience_s=0.0, sleep=clock.advance
            ),
        )  # fmt: skip
        landed = fly_in(flight, folder)
    with closing(EventLog(f"sqlite:///{folder / 'ajet.db'}", clock=SimClock())) as log:
        rows = [row_of(event) for event in log.read(flight.name)]
    proof = verify(flight.name, rows, folder / "studies" / flight.name)
    assert (landed.refused, proof.drifts) == (None, ())
    assert proof.held["verdict"] >= 1
    return landed


def test_mediators_are_measured_judged_behind_their_claim_shown_and_verified() -> None:
    asked = proposal("group_size", 8, 16)
    moves = [{"metric": name, "direction": "increase", "smallest_effect": None} for name in NAMES]
    asked["hypotheses"][0]["mediators"] = moves
    with scratch() as folder:
        landed = fly_proposal(asked, folder)
    (verdict,) = landed.state.rounds[0].verdicts
    assert verdict.verdict == "supported"
    assert [found.result for found in verdict.mediators] == ["moved", "open", "untested"]
    assert landed.report is not None
    assert all(name in landed.report for name in NAMES)
    assert "moved with it" in landed.report
    assert "because" not in landed.report[landed.report.index("Mediator |") :].partition("\n\n")[0]
    assert not landed.state.rounds[0].outcome.differences  # its level went to the mediators, and stayed there


def test_effects_of_a_factorial_are_judged_over_the_same_arms_each_at_its_part_of_the_level() -> None:
    cells = [{"group_size": size, "epochs": epochs} for size in (8, 16) for epochs in (1, 2)]
    signs = {"main": (-1, -1, 1, 1), "other": (-1, 1, -1, 1), "both": (1, -1, -1, 1)}
    claims = [
        proposal("configuration", cells[0], cells[-1])["hypotheses"][0]
        | {"ladder": cells, "contrast": [sign / 2 for sign in weights]}
        for weights in signs.values()
    ]
    with scratch() as folder:
        landed = fly_proposal({"action": "propose", "hypotheses": claims, "why": ""}, folder)
    first = landed.state.rounds[0]
    assert first.design is not None
    assert len(first.design.arms) == 4
    assert [verdict.verdict for verdict in first.verdicts if verdict.hypothesis == "h1"] == ["supported"]
    alpha = first.design.looks[first.verdict_on("h1").look - 1].alpha
    assert first.verdict_on("h1").level == pytest.approx(1 - alpha / 3)
