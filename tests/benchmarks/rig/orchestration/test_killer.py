"""Who is killed next: every kind that lives is met, and what the policy grants is not used up."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from rig.orchestration.killer import Killer
from rig.orchestration.victims import BRINGING_BACK, KINDS, Victim

from research.installation.tiny_model import MOST_TRIES
from research.serving.orphans import MOST_FRUITLESS
from studies import StudyState
from tests.studies.synthetic import Synthetic


class Process:
    """Counts how often it is killed."""

    ids = count(1)

    def __init__(self) -> None:
        self.killed = 0
        self.pid = next(self.ids)

    def kill(self) -> None:
        self.killed += 1


def victim(kind: str, attempt: int = 0) -> Victim:
    return Victim(cast(Any, Process()), kind, "ab" * 8 if attempt else "", attempt)


@pytest.fixture
def state(tmp_path: Path) -> StudyState:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    synthetic.lock()
    return synthetic.state()


def kinds(killer: Killer, alive: list[Victim], state: StudyState, looks: int) -> list[str]:
    """Return the kinds that are killed in so many looks, a second apart."""
    found = [killer.look(float(second), lambda: alive, state) for second in range(looks)]
    return [each.kind for each in found if each is not None]


def test_a_kind_that_was_never_killed_comes_first_and_all_are_met(state: StudyState) -> None:
    alive = [victim(kind) for kind in KINDS]
    killer = Killer(random.Random(1), (1.0, 1.0), rest_s=0.0)
    assert kinds(killer, alive, state, len(KINDS) + 1) == list(KINDS)
    assert sum(cast(Any, each.process).killed for each in alive) == len(KINDS)
    assert set(killer.by_kind().values()) == {1}


def test_two_killers_of_one_seed_draw_alike_and_those_of_another_do_not(state: StudyState) -> None:
    alive = [victim(kind) for kind in KINDS]
    drawn = [kinds(Killer(random.Random(seed), (1.0, 3.0), 0.0), alive, state, 200) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_kind_rests_after_a_kill(state: StudyState) -> None:
    killer = Killer(random.Random(1), (1.0, 1.0), rest_s=30.0)
    assert len(kinds(killer, [victim("controller")], state, 200)) in (5, 6, 7)
    times = [kill["after_s"] for kill in killer.kills]
    assert min(later - earlier for earlier, later in pairwise(times)) == 30.0


def test_tries_of_runs_are_kept_for_the_kinds_that_were_never_met(state: StudyState) -> None:
    killer = Killer(random.Random(1), (1.0, 1.0), rest_s=0.0)
    always = [victim("shim", 1), victim("swarm server", 1), victim("attempt", 1)]
    assert len(kinds(killer, always, state, 20)) == 3
    for shortly in ("client", "evaluator"):
        assert set(kinds(killer, [*always, victim(shortly, 1)], state, 20)) >= {shortly}
    assert len(kinds(killer, always, state, 40)) > 3


def test_what_brings_a_study_back_lives_for_a_while_before_it_may_be_killed(state: StudyState) -> None:
    lives = set()
    for seed in range(50):
        killer = Killer(random.Random(seed), (0.0, 0.0), rest_s=30.0)
        alive = [victim("controller")]
        lives.add(next(second for second in range(100) if killer.look(float(second), lambda: alive, state)))  # noqa: B023
    assert min(lives) < 10
    assert 50 < max(lives) <= 60


def test_while_no_controller_lives_one_of_those_is_killed_that_bring_it_back(state: StudyState) -> None:
    killer = Killer(random.Random(1), (1.0, 1.0), rest_s=0.0)
    machinery = [victim(kind) for kind in BRINGING_BACK]
    assert len(kinds(killer, machinery, state, 20)) == 1
    with_it = [victim("controller"), *machinery]
    assert set(kinds(killer, with_it, state, 100)) == {each.kind for each in with_it}


def test_the_last_try_of_a_run_a_model_and_a_fruitless_study_are_spared(state: StudyState) -> None:
    killer = Killer(random.Random(1), (1.0, 1.0), rest_s=0.0)
    assert state.design is not None
    tries = state.design.max_attempts
    assert kinds(killer, [victim("client", tries)], state, 20) == []
    assert kinds(killer, [victim("client", tries - 1)], state, 20) != []
    assert len(kinds(killer, [victim("maker of tiny models")], state, 100)) == MOST_TRIES - 1
    vain = replace(state, fruitless=MOST_FRUITLESS - 1)
    assert kinds(Killer(random.Random(1), (1.0, 1.0), 0.0), [victim("controller")], vain, 20) == []


def test_a_kind_that_was_never_met_is_counted_with_none() -> None:
    assert Killer(random.Random(1), (1.0, 1.0), 0.0).by_kind() == dict.fromkeys(KINDS, 0)
