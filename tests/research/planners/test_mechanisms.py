"""A claim with mediators through the shipped loop: proposed, locked, measured, judged, shown, verified."""

from __future__ import annotations

from contextlib import closing

import pytest
from simlab.sim_clock import SimClock
from simlab.sim_run import Flight, fly_in, scratch
from simlab.suites.traps import ASK, world

from research.planners.endpoint import OpenAiEndpoint
from research.planners.llm import LlmPlanner
from studies import EventLog
from studies.log.event import row_of
from studies.proof import verify
from tests.research.planners.flights import KEY, MODEL, Script, proposal
from tests.research.planners.scripted_endpoint import scripted_endpoint

pytestmark = pytest.mark.slow
NAMES = ("logged:critic/success/mean:last", "logged:actor/entropy:first10:0..3", "logged:critic/rewards/mean:slope")


def test_mediators_are_measured_judged_behind_their_claim_shown_and_verified() -> None:
    asked = proposal("group_size", 8, 16)
    moves = [{"metric": name, "direction": "increase", "smallest_effect": None} for name in NAMES]
    asked["hypotheses"][0]["mediators"] = moves
    with scripted_endpoint(Script({(1, "propose"): [asked]})) as endpoint, scratch() as folder:
        flight = Flight(
            "by-what", ASK.topic, world(1, effect=0.2), budget_s=40 * 3600.0, asks={"rounds": 2}, report=True,
            planner=lambda clock: LlmPlanner(
                MODEL, OpenAiEndpoint(KEY, endpoint.url), patience_s=0.0, sleep=clock.advance
            ),
        )  # fmt: skip
        landed = fly_in(flight, folder)
        (verdict,) = landed.state.rounds[0].verdicts
        assert verdict.verdict == "supported"
        assert [found.result for found in verdict.mediators] == ["moved", "open", "untested"]
        assert landed.report is not None
        assert all(name in landed.report for name in NAMES)
        assert "moved with it" in landed.report
        assert "because" not in landed.report[landed.report.index("Mediator |") :].partition("\n\n")[0]
        assert not landed.state.rounds[0].outcome.differences  # its level went to the mediators, and stayed there
        with closing(EventLog(f"sqlite:///{folder / 'ajet.db'}", clock=SimClock())) as log:
            rows = [row_of(event) for event in log.read(flight.name)]
        proof = verify(flight.name, rows, folder / "studies" / flight.name)
        assert proof.drifts == ()
        assert proof.held["verdict"] >= 1
