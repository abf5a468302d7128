"""From a topic to a locked design: the planner's turns, each asked for once, and the events they become.

A turn is written to the study's folder before its first event, so that a controller killed in between continues
with the same answer (and, for a design, the same seeds) instead of paying for another.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from research.codes import INVALID_CODES
from research.design import accept_hypotheses, compile_design, proposed_code, refusal, seed_source
from research.errors import HomeError, PlannerFailed
from research.files import read_json, write_json
from research.home import Home
from research.planner.actions import Action, Conclude, Propose, ProposeDesign
from research.planner.digest import Digest
from research.planner.protocol import Planner
from research.pricing import Pricing
from research.sandboxing import sandboxing_of
from studies import EventLog, EventType, StudyState
from studies.records import Budget, Design, Hypothesis
from swarm.job import Job

_ACTION: TypeAdapter[Action] = TypeAdapter(Action)


class Planning:
    """Asks the planner of one study and writes what comes of it. `base` is the job under all arms."""

    def __init__(self, home: Home, log: EventLog, study: str, planner: Planner, pricing: Pricing, base: Job) -> None:
        self._folder = home.study(study) / "planning"
        self._log = log
        self._study = study
        self._planner = planner
        self._pricing = pricing
        self._base = base

    def plan(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        """Propose, design and lock, going on from wherever an earlier try ended.

        `seconds_left` is asked anew for each turn, as a slow planner spends the budget too. Raises BadTopic,
        DesignRefused, PlannerFailed; nothing is locked then.
        """
        proposed, code = self._proposed(state, seconds_left())
        design = self._designed(state, proposed, code, seconds_left())
        self._append(EventType.DESIGN_LOCKED, {"design": design.model_dump(mode="json"), "hash": design.hash()})

    def conclusion(self, state: StudyState, seconds_left: float) -> str | None:
        """Return why the planner ends the study, in its words; None when it has none (then code's reason stands)."""
        try:
            turn = self._turn(state, self._digest(state, state.hypotheses, seconds_left), "conclude")
        except PlannerFailed:
            return None
        action = _ACTION.validate_python(turn["action"])
        return action.reason if isinstance(action, Conclude) else None

    def _proposed(self, state: StudyState, seconds_left: float) -> tuple[tuple[Hypothesis, ...], dict[str, str]]:
        turn = self._turn(state, self._digest(state, (), seconds_left), "propose")
        action = _ACTION.validate_python(turn["action"])
        assert isinstance(action, Propose)
        proposed = accept_hypotheses(action)
        known = {hypothesis.id for hypothesis in state.hypotheses}
        for hypothesis in proposed:
            if hypothesis.id not in known:
                self._append(EventType.HYPOTHESIS_PROPOSED, hypothesis.model_dump(mode="json"))
        return proposed, proposed_code(action)

    def _designed(
        self, state: StudyState, proposed: tuple[Hypothesis, ...], code: Mapping[str, str], seconds_left: float
    ) -> Design:
        turn = self._turn(state, self._digest(state, proposed, seconds_left), "design")
        action = _ACTION.validate_python(turn["action"])
        assert isinstance(action, ProposeDesign)
        return compile_design(
            state.topic,
            proposed,
            action,
            price=self._pricing,
            budget=_budget(state),
            draw_seed=seed_source(self._study, bytes.fromhex(turn["secret"])),
            seconds_left=seconds_left,
            exclusions=INVALID_CODES,
            base=self._base,
            code=code,
        )

    def _turn(self, state: StudyState, digest: Digest, name: str) -> Mapping[str, Any]:
        """Return the planner's turn of this name and see that its event is written."""
        path = self._folder / f"{name}.json"
        turn = _read_turn(path)
        if turn is None:
            turn = self._ask(state, digest)
            write_json(path, turn)
        if all(act.action != name for act in state.planner_acts):
            self._append(EventType.PLANNER_ACTED, turn["acted"])
        return dict(turn)

    def _ask(self, state: StudyState, digest: Digest) -> dict[str, Any]:
        def check(action: Action) -> str | None:
            if action.action != digest.stage:
                return f"expected the action {digest.stage!r} now; found {action.action!r}"
            return refusal(
                action, digest.hypotheses, price=self._pricing, budget=_budget(state),
                seconds_left=digest.seconds_left, base=self._base, code_allowed=digest.code_allowed,
            )  # fmt: skip

        turn = self._planner.act(digest, check)
        if (wrong := check(turn.action)) is not None:
            raise PlannerFailed(f"the planner {self._planner.name} gave an action that is refused: {wrong}")
        action = turn.action.model_dump(mode="json")
        return {"acted": turn.payload(), "action": action, "secret": secrets.token_hex(32)}

    def _digest(self, state: StudyState, hypotheses: tuple[Hypothesis, ...], seconds_left: float) -> Digest:
        return Digest(
            topic=state.topic,
            seconds_left=seconds_left,
            seconds_per_run=self._pricing.seconds_per_run(self._base),
            parallel=self._pricing.parallel,
            max_runs=state.settings["max_runs"],
            hypotheses=hypotheses,
            design=state.design,
            verdicts=state.verdicts,
            code_allowed=sandboxing_of(state.settings).isolates,
        )

    def _append(self, type: EventType, payload: Mapping[str, Any]) -> None:
        self._log.append(self._study, type, payload, actor="planner" if type is EventType.PLANNER_ACTED else "system")


def _read_turn(path: Path) -> dict[str, Any] | None:
    """Return a turn that was taken before, None if none was; HomeError for a file that is no turn any more."""
    try:
        turn = read_json(path)
        if turn is None:
            return None
        _ACTION.validate_python(turn["action"])
        bytes.fromhex(turn["secret"])
        return {"acted": dict(turn["acted"]), "action": turn["action"], "secret": turn["secret"]}
    except (ValueError, KeyError, TypeError) as error:
        raise HomeError(
            f"expected a planner's turn in {path}; found something else; restore it from a backup, or remove it to "
            "have the planner asked again"
        ) from error


def _budget(state: StudyState) -> Budget:
    return Budget(wall_clock_s=state.settings["budget_s"], max_runs=state.settings["max_runs"])
