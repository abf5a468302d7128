"""A study in real processes with a tiny model: its planner explores before it asks, its untrained policy is evaluated
once, and all runs play one set of hidden tasks, each with draws of its own."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from research.controller.controller import StudyController
from research.design.noise_bank import NoiseBank, model_key
from research.installation.home import Home
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.proposals.actions import Explore, Tried
from research.runs.files import AttemptFolder, AttemptOutcome
from research.scheduler.next_step import is_done
from sandboxes import ProcessSandbox
from studies import EventLog, RunState, fold
from studies.log.event import row_of
from studies.proof import verify
from studies.records.runs import PLUMBING_ARM
from swarm.job import Job, TinyModel
from tests.end_to_end.controller import EPISODES, PRICING, STUDY, home_with_study
from tests.research.banks import bank
from tests.research.fakes import ScriptedPlanner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SMALL = Job(model=TinyModel(hidden_size=16, layers=1, warm_start_steps=20), steps=4, episodes_per_step=16, device="cpu")
KNOWN = NoiseBank(
    bank(0.01, job=SMALL.model_copy(update={"environment": "arith"}), episodes=EPISODES).observations,
    checked=frozenset({("arith", model_key(SMALL))}),
)


class Exploring(ScriptedPlanner):
    """Has the job made once before it asks, and looks at plays of it."""

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if digest.stage == "propose" and digest.explored == 0:
            wish = Explore(environment="arith", tried=(Tried(),), steps=2, why="to see")
            return PlannerTurn(wish, refused=check(wish))
        if digest.stage == "propose":
            assert digest.tools is not None
            [row] = digest.tools.answer("runs", {})["rows"]
            self.plays = [
                digest.tools.answer("episodes", {"run": row[0], "when": when}) for when in ("begin", "middle")
            ]
        return super().act(digest, check)


def evaluation_of(home: Home, run: RunState) -> dict[str, Any]:
    assert run.collected is not None
    found: dict[str, Any] = json.loads((home.study(STUDY) / run.collected["evaluation"]["path"]).read_text())
    return found


def test_a_study_evaluates_its_untrained_policy_once_and_all_runs_on_the_same_hidden_tasks(tmp_path: Path) -> None:
    with home_with_study(tmp_path) as home, closing(EventLog(home.database)) as log:
        planner = Exploring(environment="arith")
        loop = StudyController(
            home=home, log=log, study=STUDY, planner=planner,
            sandbox=ProcessSandbox(home.sandboxes), pricing=PRICING, base=SMALL, noise_bank=lambda log: KNOWN,
        )  # fmt: skip
        while not is_done(loop.tick()):
            pass
        events = log.read(STUDY)
        state = fold(events)
        assert verify(STUDY, [row_of(event) for event in events], home.study(STUDY)).drifts == ()
        explored, still, *runs = sorted(state.runs.values(), key=lambda run: run.attempts[0].launched)
        assert (explored.spec.phase, explored.spec.metric.split) == ("explore", "search")
        assert [(shown["split"], shown["after_step"]) for shown in planner.plays] == [("search", 0), ("search", 1)]
        assert all(shown["with_words_kept"] > 0 and shown["quoted"][0]["said"] for shown in planner.plays)
        assert (still.spec.arm, {run.spec.phase for run in runs}) == (PLUMBING_ARM, {"confirm"})
        assert all(run.status == "collected" for run in state.runs.values())
        stages = {
            run.run_id: AttemptOutcome.model_validate_json(
                AttemptFolder(home.attempt(STUDY, run.run_id, 1)).outcome.read_bytes()
            ).stages
            for run in (still, *runs)
        }
        assert [run_id for run_id, found in stages.items() if "initial" in found] == [still.run_id]
        parts = {run.run_id: evaluation_of(home, run) for run in (still, *runs)}
        assert {run.untrained for run in runs} == {still.run_id}
        assert all(part["initial"] == parts[still.run_id]["initial"] for part in parts.values())
        plays = [[(play["task_id"], play["sample"]) for play in part["final"]["episodes"]] for part in parts.values()]
        assert len(plays[0]) == EPISODES
        assert all(sorted(played) == sorted(plays[0]) for played in plays)
        tokens = {run.spec.arm: set[str]() for run in runs}
        for run in runs:
            tokens[run.spec.arm].add(str([play["tokens"] for play in parts[run.run_id]["final"]["episodes"]]))
        # the plays themselves are each seed's own; those of two arms with one seed may be alike
        assert sum(map(len, tokens.values())) == len(runs)
