"""What an inquiry has found so far, as a planner is shown it before it asks the next question.

Facts of code's making alone: locked designs, verdicts, levels, what surprised. Bounded: every claim stands with its
effect and interval, the newest rounds with reasons too, as far as there is room; what was left out is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from research.planner.quoted import plain
from research.planner.surprises import MOST_SHOWN, Surprise, surprises
from research.proposals.models import arm_text
from studies import RunState, StudyState
from studies.inquiry.ledger import ErrorLedger, Ledgers
from studies.log.study_state import PlannedExploration
from studies.records.base import JsonValue, canonical
from studies.records.design import MODEL, Design, Hypothesis
from studies.records.design_parts import Knob
from studies.records.verdict import Verdict

_SHOWN_IN_FULL: Final = 4
"""Rounds whose verdicts are told with their reasons."""
MOST_CHARACTERS: Final = 14_000
"""Of the facts, as JSON."""
_EXPLORATIONS_SHOWN: Final = 4
_LONGEST_WHY: Final = 300
_DIGITS: Final = 5


Beside = Callable[[StudyState], Iterable[str]]
"""Returns what other measures of a round's runs say otherwise than its verdicts."""


def _nothing_beside(state: StudyState) -> tuple[str, ...]:
    """Return that nobody looked."""
    return ()


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """One claim of a round, and what came of it; `verdict` is None where it was never judged."""

    claim: Hypothesis
    verdict: Verdict | None

    @property
    def found(self) -> bool:
        """Whether a difference was shown, on the predicted side or the other one."""
        return self.verdict is not None and self.verdict.verdict in ("supported", "refuted")


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """One round that is over."""

    number: int
    design: Design
    claims: tuple[ClaimFacts, ...]
    why: str
    """Why it was asked; empty for the first."""
    searched: tuple[Knob, ...] = ()
    """What its screen searched, where one found its arms."""
    beside: tuple[str, ...] = ()
    """What other measures of its runs say otherwise than its verdicts, a sentence each."""

    @classmethod
    def of(cls, state: StudyState, beside: Beside = _nothing_beside) -> RoundFacts:
        """Return the facts of a round that has a design."""
        assert state.design is not None
        claims = tuple(ClaimFacts(h, state.verdict_on(h.id)) for h in state.design.hypotheses)
        screen = None if state.locked_design is None else state.locked_design.screen
        return cls(
            state.round, state.design, claims, state.why_asked, screen.knobs if screen else (), tuple(beside(state))
        )

    def facts(self, *, whole: bool) -> dict[str, Any]:
        """Return them as JSON values; not `whole`: without reasons, and why it was asked."""
        told: dict[str, Any] = {"round": self.number, "environment": self.design.environment}
        if self.why and whole:
            why = plain(self.why)
            told["asked_because"] = why if len(why) <= _LONGEST_WHY else f"{why[: _LONGEST_WHY - 1]}…"
        return told | {"claims": [_claim(entry, whole=whole) for entry in self.claims]}

    def surprises(self) -> Iterator[Surprise]:
        """Yield what surprised in it."""
        for entry in self.claims:
            if entry.verdict is not None:
                yield from surprises(self.number, entry.claim, entry.verdict)
        for told in self.beside:
            yield Surprise(self.number, "", plain(told))


@dataclass(frozen=True, slots=True)
class InquiryFacts:
    """The rounds before the one that is to be planned, and what its tests may spend."""

    rounds: tuple[RoundFacts, ...]
    ledgers: Ledgers
    """As they stand before the round that is to be planned."""
    refused: tuple[str, ...] = ()
    """Why earlier questions for this round could not be had."""
    explorations: tuple[Mapping[str, Any], ...] = ()
    """What was tried without a claim, the newest last, as JSON values."""
    explored: int = 0
    """Explorations since the last round."""

    @classmethod
    def of(cls, state: StudyState, beside: Beside = _nothing_beside) -> InquiryFacts:
        """Return the facts of an inquiry whose present round is over.

        `beside` says what other measures of a round's runs are surprising.
        """
        tried = [_exploration(entry, planned) for entry in state.rounds for planned in entry.explorations]
        return cls(
            tuple(RoundFacts.of(entry, beside) for entry in state.rounds), state.ledgers.after(state.outcome),
            explorations=tuple(tried[-_EXPLORATIONS_SHOWN:]), explored=len(state.explorations),
        )  # fmt: skip

    @property
    def round(self) -> int:
        """The number of the round that is to be planned."""
        return self.ledgers.round

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of all rounds so far."""
        claims = (entry for told in self.rounds for entry in told.claims)
        return tuple(entry.verdict for entry in claims if entry.verdict is not None)

    def facts(self) -> dict[str, Any]:
        """Return them as JSON values, with as much as there is room for."""
        for whole in range(_SHOWN_IN_FULL, 0, -1):
            told = self._facts(whole)
            if len(canonical(told)) <= MOST_CHARACTERS:
                return told
        return self._facts(0)

    def _facts(self, whole: int) -> dict[str, Any]:
        """Return them with so many rounds in full."""
        first = max(0, len(self.rounds) - whole)
        found = [entry for told in self.rounds for entry in told.surprises()]
        told: dict[str, Any] = {
            "round_to_plan": self.round,
            "most_rounds": self.ledgers.differences.rounds,
            "level_of_differences": round(self.ledgers.differences.level, _DIGITS),
            "level_of_equivalences": round(self.ledgers.equivalences.level, _DIGITS),
            "ledger_of_differences": _ledger(self.ledgers.differences),
            "ledger_of_equivalences": _ledger(self.ledgers.equivalences),
            "rounds_so_far": [entry.facts(whole=index >= first) for index, entry in enumerate(self.rounds)],
        }
        if found:
            told["surprises"] = [
                {"round": entry.round, "claim": entry.claim, "what": entry.what} for entry in found[-MOST_SHOWN:]
            ]
        if self.explorations:
            told["explorations"] = list(self.explorations)
        if left := _left_out(first, len(found) - MOST_SHOWN):
            told["left_out"] = left
        return told | ({"could_not_be_had": list(self.refused)} if self.refused else {})


def _exploration(state: StudyState, planned: PlannedExploration) -> dict[str, Any]:
    """Return what an exploration tried and what its single runs came to; a hint, and no claim."""
    plan, runs = (
        planned.plan,
        {run.spec.arm: run for run in state.runs_in("explore") if run.spec.seed == planned.plan.seed},
    )
    return {
        "after_round": state.round, "environment": plan.environment, "steps": plan.base_job.get("steps"),
        "why": plain(plan.why), "single_runs_on_search_tasks_which_claim_nothing": [
            {"tried": arm.name, "success": _score(runs.get(arm.name))} for arm in plan.arms
        ],
    }  # fmt: skip


def _score(run: RunState | None) -> float | str:
    if run is None or run.invalid is not None:
        return "not made" if run is None or run.invalid is None else run.invalid[0]
    found = run.measurements.get(run.spec.metric.key)
    return "not made" if found is None else round(found.value, _DIGITS)


def _left_out(rounds: int, found: int) -> str:
    """Return what is not shown, in words; empty for nothing."""
    parts = [f"reasons and settings of the first {rounds} rounds"] if rounds > 0 else []
    return "; ".join([*parts, *([f"the first {found} surprises"] if found > 0 else [])])


def _ledger(ledger: ErrorLedger) -> list[dict[str, Any]]:
    """Return a ledger's rounds, the next one last: what each may spend, and whether its level was handed on."""
    return [
        {"round": entry.round, "level": round(entry.level, _DIGITS), "of_it_received": round(entry.received, _DIGITS)}
        | ({} if entry.handed_on is None else {"handed_on": entry.handed_on})
        for entry in ledger.entries()
    ]


def _claim(entry: ClaimFacts, *, whole: bool) -> Mapping[str, Any]:
    claim, verdict = entry.claim, entry.verdict
    told: dict[str, Any] = {
        "id": claim.id, "variable": claim.variable, "control": _value(claim, claim.control),
        "treatment": _value(claim, claim.treatment), "claimed": claim.direction,
        "verdict": "not judged" if verdict is None else verdict.verdict,
    }  # fmt: skip
    if claim.kind != "difference":
        told |= {"kind": claim.kind, "moderator": claim.moderator, "ladder": list(claim.ladder)}
    if verdict is None:
        return told
    told |= {name: _number(getattr(verdict, name)) for name in ("estimate", "low", "high")}
    if not whole:
        return told
    counts = {"n_control": verdict.n_control, "n_treatment": verdict.n_treatment}
    if claim.sought == "equivalence":
        told["sought"] = claim.sought
    return told | counts | {"reason": verdict.reason}


def _value(claim: Hypothesis, value: JsonValue) -> JsonValue:
    """Return a compared value as a proposal names it."""
    return arm_text(value) if claim.variable == MODEL else value


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
