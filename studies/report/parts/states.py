"""The states that a study's runs and files lie in: one for each round, those that came to no lock included."""

from __future__ import annotations

from studies.log.study_state import StudyState


def every_state(state: StudyState) -> tuple[StudyState, ...]:
    """Return the state of each round in the order of the rounds; those that were given up come last."""
    return (*state.rounds, *state.given_up)


def is_inquiry(state: StudyState) -> bool:
    """Return whether a study may have, or has, more rounds than one."""
    return state.most_rounds > 1 or bool(state.rounds_before)
