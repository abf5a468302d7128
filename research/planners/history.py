"""What a planner is shown of an inquiry so far: rounds, surprises, notebook, quoted text.

Facts are code's alone, and bounded: the newest rounds stand with reasons as far as there is room, and what was left out
is said. The notebook is the planner's own voice, shown back and never computed from.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from research.proposals.actions import Note, Plan, Revise, SideAction
from research.proposals.arms import arm_text
from research.text import SECRET_NAME
from studies import StudyState
from studies.log.entries import PlannerNote
from studies.records.alpha import AlphaLedger, AlphaLedgers
from studies.records.base import JsonValue, canonical
from studies.records.design import MODEL, Design, Hypothesis
from studies.records.procedure import ScreenField
from studies.records.verdict import Verdict
from studies.report.answer import NodeOutcome
from studies.report.prose import why_asked
from studies.verdicts.wording import deciding_interval

LONGEST = 500
"""Characters of one text that are shown."""
MOST = 8
"""Texts that are shown: the latest."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x1b\\|\x07|$)|[@-_])|\x9b[0-?]*[ -/]*[@-~]", re.DOTALL)
"""Terminal sequences: CSI (also as one character), strings up to their terminator, and two-character ones."""
_SHORTEST_SECRET = 8
"""Shorter ones are placeholders, which would be found in any text."""
MOST_IDEAS: Final = 20
"""Ideas that are shown: the latest; of questions as many."""
MOST_SURPRISES: Final = 16
"""Surprises that are shown: the latest."""
_LONGEST: Final = 240
_SHOWN_IN_FULL: Final = 4
"""Rounds whose verdicts are told with their reasons."""
MOST_CHARACTERS: Final = 14_000
"""Of the facts, as JSON."""
_EXPLORATIONS_SHOWN: Final = 4
_LONGEST_WHY: Final = 300
_DIGITS: Final = 5

SecondaryMetrics = Callable[[StudyState], Iterable[str]]
"""Returns what other measures of a round's runs say otherwise than its verdicts."""


@dataclass(frozen=True, slots=True)
class QuotedText:
    """One quoted text."""

    id: str
    """What it is called, such as `note-12`: the number is its event's."""
    text: str


def sanitize_line(text: str, most: int = LONGEST) -> str:
    """Return a text on one line, without terminal sequences and characters that do not print, cut to `most`."""
    printed = (char for char in _ESCAPE.sub("", text) if char.isspace() or unicodedata.category(char)[0] != "C")
    line = " ".join("".join(printed).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def redact_secrets(text: str) -> str:
    """Return a text without the values of those variables of this process that are secrets by their names."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return text


def quote_latest(texts: Iterable[tuple[str, str]]) -> Sequence[QuotedText]:
    """Return the latest `MOST` of (id, text), the oldest first; a text of which nothing is left is left out."""
    shown = [QuotedText(name, sanitize_line(text)) for name, text in texts]
    return tuple(entry for entry in shown if entry.text)[-MOST:]


@dataclass(frozen=True, slots=True)
class Notebook:
    """What a planner wrote down in one study."""

    notes: tuple[PlannerNote, ...] = ()
    plan: tuple[NodeOutcome, ...] = ()
    """The questions of its plan, and what came of them."""

    @property
    def ideas(self) -> Mapping[str, PlannerNote]:
        return {note.id: note for note in self.notes if note.kind == "note"}

    @property
    def revisions(self) -> Mapping[str, PlannerNote]:
        return {note.about: note for note in self.notes if note.kind == "revise"}

    def find_conflict(self, side_action: SideAction) -> str | None:
        """Return why something cannot be written down, in one line for a planner; None for what can."""
        if isinstance(side_action, Plan):  # each stands beside those before it
            names = [*dict.fromkeys(node.id for node in (*side_action.nodes, *(entry.node for entry in self.plan)))]
            for node in side_action.nodes:
                follow = {node.if_supported, node.if_refuted, node.if_equivalent, node.if_unknown}
                if stray := sorted(follow - {"", *names}):
                    return f"{node.id}: expected branches to {', '.join(names)} or none; found {stray[0][:40]!r}"
            return None
        if not isinstance(side_action, Revise):
            kind, place = ("note", "your notebook holds") if isinstance(side_action, Note) else ("ask", "was asked")
            old = any((note.kind, note.text) == (kind, side_action.text) for note in self.notes)
            return f"expected something new; found what {place} already" if old else None
        ideas, about = self.ideas, side_action.about
        if about not in ideas:
            return f"expected an idea of your notebook ({', '.join(ideas) or 'it holds none'}); found {about!r}"
        last = self.revisions.get(about)
        if last is not None and not last.text:
            return f"{about} was withdrawn before; note a new idea instead"
        if side_action.text and side_action.text == (last or ideas[about]).text:
            return f"expected {about} to be narrowed; found the same words"
        return None

    def facts(self) -> dict[str, Any]:
        ideas = [{"id": n.id, "round": n.round, "text": sanitize_line(n.text)} for n in self.ideas.values()]
        for idea in ideas:
            if (last := self.revisions.get(str(idea["id"]))) is not None:
                because = sanitize_line(last.reason)
                now = {"now": sanitize_line(last.text), "because": because}
                idea.update(now if last.text else {"withdrawn_because": because})
        asked = [{"id": note.id, "text": sanitize_line(note.text)} for note in self.notes if note.kind == "ask"]
        shown: dict[str, Any] = {"your_notebook": ideas[-MOST_IDEAS:], "you_asked_the_user": asked[-MOST_IDEAS:]}
        for outcome in self.plan:
            came = {"asked_in_round": outcome.round, "verdicts": outcome.verdicts, "branch_taken": outcome.branch}
            node = {name: value for name, value in {**outcome.node.model_dump(), **came}.items() if value}
            shown.setdefault("your_plan", []).append(
                {name: sanitize_line(value) if isinstance(value, str) else value for name, value in node.items()}
            )
        left = max(0, len(ideas) - MOST_IDEAS) + max(0, len(asked) - MOST_IDEAS)
        told: dict[str, Any] = {name: entries for name, entries in shown.items() if entries}
        return told | ({"left_out_of_your_notebook": f"{left} older entries"} if left else {})


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """One claim of a round, and what came of it; `verdict` is None where it was never judged."""

    claim: Hypothesis
    verdict: Verdict | None

    @property
    def found(self) -> bool:
        """Whether a difference was shown, on the predicted side or the other one."""
        return self.verdict is not None and self.verdict.verdict in ("supported", "refuted")

    def list_surprises(self) -> Iterator[str]:
        claim, predicted, verdict = self.claim, self.claim.prediction, self.verdict
        if verdict is None:
            return
        if verdict.verdict == "refuted" and not claim.open:
            yield f"{claim.direction} was claimed, and the opposite was found ({verdict.estimate:+.4g})"
        if verdict.within_prediction is False and verdict.estimate is not None:
            yield f"predicted {predicted.low:+.4g} to {predicted.high:+.4g}, found {verdict.estimate:+.4g}"
        for what, rates in (("collapsed", verdict.collapses), ("never started", verdict.starts)):
            yield from (f"{rate.count} of {rate.of} trainings of {rate.arm} {what}" for rate in rates if rate.count)
        yield from (f"{what}: {count} counted with the worst value" for what, count in verdict.counted_as_worst.items())
        yield from (f"the linter says: {line}" for line in verdict.violations)


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """One round that is over."""

    number: int
    design: Design
    claims: tuple[ClaimFacts, ...]
    why: str
    """Why it was asked; empty for the first."""
    searched: tuple[ScreenField, ...] = ()
    """What its screen searched, where one found its arms."""
    secondary_metrics: tuple[str, ...] = ()
    """What other measures of its runs say otherwise than its verdicts, a sentence each."""

    @classmethod
    def of(cls, state: StudyState, secondary_metrics: SecondaryMetrics = lambda state: ()) -> "RoundFacts":
        design, locked = state.design, state.locked_design
        assert design is not None
        claims = tuple(ClaimFacts(claim, state.verdict_on(claim.id)) for claim in design.hypotheses)
        searched = () if locked is None or locked.screen is None else locked.screen.knobs
        return cls(state.round, design, claims, why_asked(state), searched, tuple(secondary_metrics(state)))

    def facts(self, *, whole: bool) -> dict[str, Any]:
        """Return them as JSON values; not `whole`: without reasons, and why it was asked."""
        told: dict[str, Any] = {"round": self.number, "environment": self.design.environment}
        if self.why and whole:
            told["asked_because"] = sanitize_line(self.why, _LONGEST_WHY)
        return told | {"claims": [_dump_claim(entry, self.design, whole=whole) for entry in self.claims]}

    def list_surprises(self) -> Iterator[dict[str, Any]]:
        """Yield what was not expected: round, id of the hypothesis (empty where the sentence names it), sentence."""
        known = [(entry.claim.id, text, _LONGEST) for entry in self.claims for text in entry.list_surprises()]
        for claim, text, most in (*known, *(("", text, LONGEST) for text in self.secondary_metrics)):
            yield {"round": self.number, "claim": claim, "what": sanitize_line(text, most)}


@dataclass(frozen=True, slots=True)
class CampaignFacts:
    """The rounds before the one that is to be planned, and what its tests may spend."""

    rounds: tuple[RoundFacts, ...]
    ledgers: AlphaLedgers
    """As they stand before the round that is to be planned."""
    refused: tuple[str, ...] = ()
    """Why earlier questions for this round could not be had."""

    @classmethod
    def of(cls, state: StudyState, secondary_metrics: SecondaryMetrics = lambda state: ()) -> "CampaignFacts":
        """Return the facts of an inquiry whose present round is over."""
        rounds = tuple(RoundFacts.of(entry, secondary_metrics) for entry in state.rounds)
        return cls(rounds, state.ledgers.after(state.outcome))

    @property
    def round(self) -> int:
        return self.ledgers.round

    def list_confirmed(self, name: str) -> list[JsonValue]:
        """Return the values of a field (or `reward`) that a round's verdict showed to be the better ones."""
        values = []
        for told in self.rounds:
            for entry in (entry for entry in told.claims if entry.found and name in entry.claim.varied):
                if entry.claim.unused_control or told.design.metric.evaluates_apart(entry.claim.declared):
                    continue  # better than a straw man, or in a game of its own
                better = ((entry.verdict and entry.verdict.estimate) or 0.0) > 0
                values.append(entry.claim.varied[name][-1 if better == told.design.metric.higher_is_better else 0])
        return values

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        claims = (entry for told in self.rounds for entry in told.claims)
        return tuple(entry.verdict for entry in claims if entry.verdict is not None)

    def facts(self) -> dict[str, Any]:
        surprises = [surprise for entry in self.rounds for surprise in entry.list_surprises()]
        shown, more = surprises[-MOST_SURPRISES:], len(surprises) - MOST_SURPRISES
        facts: dict[str, Any] = {
            "round_to_plan": self.round, "most_rounds": self.ledgers.differences.rounds,
            "level_of_differences": round(self.ledgers.differences.level, _DIGITS),
            "level_of_equivalences": round(self.ledgers.equivalences.level, _DIGITS),
            "ledger_of_differences": _dump_ledger(self.ledgers.differences),
            "ledger_of_equivalences": _dump_ledger(self.ledgers.equivalences),
        }  # fmt: skip
        told = facts
        for whole in range(_SHOWN_IN_FULL, -1, -1):
            first = max(0, len(self.rounds) - whole)
            parts = [f"reasons and settings of the first {first} rounds"] if first > 0 else []
            parts += [f"the first {more} surprises"] if more > 0 else []
            rows = {
                "rounds_so_far": [entry.facts(whole=index >= first) for index, entry in enumerate(self.rounds)],
                "surprises": shown, "left_out": "; ".join(parts), "could_not_be_had": list(self.refused),
            }  # fmt: skip
            told = facts | {name: row for name, row in rows.items() if row}
            if len(canonical(told)) <= MOST_CHARACTERS:
                break
        return told


def list_explorations(state: StudyState) -> tuple[Mapping[str, Any], ...]:
    """Return what was tried without a claim as JSON values, the newest last."""
    shown = []
    for past, planned in [(entry, planned) for entry in state.rounds for planned in entry.explorations]:
        plan, scores = planned.plan, dict[str, list[float | str]]()
        for run in (run for run in past.runs_in("explore") if run.spec.seed in plan.seeds):
            if run.invalid is not None:
                scores.setdefault(run.spec.arm, []).append(run.invalid[0])
            elif (value := run.measurements.get(run.spec.metric.key)) is not None:
                scores.setdefault(run.spec.arm, []).append(round(value.value, _DIGITS))
        known = {name: own if plan.more_seeds else own[0] for name, own in scores.items()}
        tried = [{"tried": arm.name, "success": known.get(arm.name, "not made")} for arm in plan.arms]
        shown.append({
            "after_round": planned.round - 1, "environment": plan.environment, "steps": plan.base_job.get("steps"),
            "why": sanitize_line(plan.why), "single_runs_on_search_tasks_which_claim_nothing": tried,
        })  # fmt: skip
    return tuple(shown[-_EXPLORATIONS_SHOWN:])


def _dump_ledger(ledger: AlphaLedger) -> list[dict[str, Any]]:
    return [
        {"round": entry.round, "level": round(entry.level, _DIGITS), "of_it_received": round(entry.received, _DIGITS)}
        | ({} if entry.handed_on is None else {"handed_on": entry.handed_on})
        for entry in ledger.entries()
    ]


def _dump_claim(entry: ClaimFacts, design: Design, *, whole: bool) -> Mapping[str, Any]:
    claim, verdict = entry.claim, entry.verdict
    sides = (arm_text(side) if claim.variable == MODEL else side for side in (claim.control, claim.treatment))
    facts: dict[str, Any] = {"id": claim.id, "variable": claim.variable}
    facts |= dict(zip(("control", "treatment"), sides, strict=True))
    facts |= {"claimed": claim.direction, "verdict": "not judged" if verdict is None else verdict.verdict}
    if claim.kind != "difference":
        facts |= {"kind": claim.kind, "moderator": claim.moderator, "ladder": list(claim.ladder)}
    if verdict is None:
        return facts
    decided = deciding_interval(design, verdict)  # of a test of equivalence another than of a difference
    low, high = (None, None) if decided is None else (decided.low, decided.high)
    numbers = {"estimate": verdict.estimate, "low": low, "high": high}
    facts |= {name: None if value is None else round(value, _DIGITS) for name, value in numbers.items()}
    if verdict.mediators:
        facts["mediators"] = [entry.model_dump(include={"metric", "expected", "result"}) for entry in verdict.mediators]
    if not whole:
        return facts
    sought = {"sought": claim.sought} if claim.sought == "equivalence" else {}
    counts = {"n_control": verdict.n_control, "n_treatment": verdict.n_treatment}
    return facts | sought | counts | {"reason": verdict.reason}
