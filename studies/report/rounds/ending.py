"""Why no further round was asked, and what to ask next: by rules, from the state of the whole inquiry."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from studies.log.study_state import StudyState
from studies.report.headline.next_question import NextQuestion, ask_next
from studies.report.parts.wording import one_line, plural

ASK_RULE: Final = "ask on while level and budget tell something"
"""The rule of the decision that no further question is asked, as the loop writes it down."""
IN_WORDS: Final = "nothing more is asked, in the words of "
"""How its reason begins where a planner ends the inquiry; what follows is the planner's."""


def why_ended(state: StudyState) -> str:
    """Return why no further round followed, with the words in which it was decided; or how far the inquiry is."""
    asked = f"round {state.round} of at most {state.most_rounds}"
    if state.concluded_reason is None:
        if state.stopped_reason is not None:
            return f"The inquiry was stopped in {asked} ({one_line(state.stopped_reason)})."
        return f"The inquiry is in {asked}; nobody has said yet that it is the last."
    if state.given_up:
        return f'The next round was given up: "{one_line(state.concluded_reason)}".'
    if words_at_end(state):
        return f"After {asked}, its planner asked no further one, in words that stand below the rounds."
    if (reason := _decided(state, ASK_RULE, "end")) is not None:
        return f'After {asked}, no further one was asked: "{reason}".'
    if state.round >= state.most_rounds:
        return f"All {plural(state.most_rounds, 'round')} that the first lock allows were asked."
    return f"After {asked}, no further one was asked: {_used_up(state)}."


def words_at_end(state: StudyState) -> str:
    """Return the words with which a planner asked nothing more, as they were quoted; empty where none did."""
    reason = _decided(state, ASK_RULE, "end") or ""
    return reason.removeprefix(IN_WORDS) if reason.startswith(IN_WORDS) else ""


def ask_on(state: StudyState) -> NextQuestion:
    """Return what to ask next: how the inquiry goes on, or what its last judged round leaves open."""
    return ask_next(state if state.concluded_reason is None or state.asked_next is not None else last_judged(state))


def last_judged(state: StudyState) -> StudyState:
    """Return the last round with a verdict; the state itself where none has one."""
    judged = next((each for each in reversed(state.rounds) if each.verdicts), state)
    return replace(judged, declined=False) if judged.verdicts else judged


def _used_up(state: StudyState) -> str:
    """Return what was used up, of an inquiry that ended without anybody saying that there is nothing to ask."""
    stops = [d.reason for d in state.decisions if d.hypothesis is None and d.action == "stop"]
    if stops:
        return f'the budget was used up ("{one_line(stops[-1])}")'
    most = state.settings.get("max_runs")
    if most is not None and len(state.every_run) >= int(most):
        return f"all {plural(int(most), 'run')} that were allowed are used up"
    return f'"{one_line(str(state.concluded_reason))}"'


def _decided(state: StudyState, rule: str, action: str) -> str | None:
    found = [one_line(d.reason) for d in state.decisions if (d.rule, d.action) == (rule, action)]
    return found[-1] if found else None
