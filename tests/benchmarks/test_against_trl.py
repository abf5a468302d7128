"""What a pretrained model plays beside TRL, and how its figures stand beside those of the tiny ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import against_trl
import pytest
from performance.headlines import HEADLINES
from rig import frame
from rig.training import WORKLOADS, environment_of

from swarm.environments.base import Message, PlainGame, said


def played(game: PlainGame, *, right: int) -> tuple[list[Message], int]:
    """Play a game whose first answers are right; return its opening and how many questions were asked."""
    opening, asked = game.opening(), 0
    questions = opening[-1:]
    while questions:
        word = str(questions[-1]["content"]).split()[-1]
        asked += 1
        questions = game.answer(said(word if asked <= right else f"{word}, I think"))
    return opening, asked


@pytest.mark.parametrize(("workload", "turns", "shared"), [("shared", 1, True), ("own", 1, False), ("tool", 8, True)])
def test_tasks_of_a_workload_share_their_examples_or_have_their_own_and_count_right_answers(
    workload: str, turns: int, *, shared: bool
) -> None:
    environment = environment_of({"workload": workload, "job": {}})
    games = [WORKLOADS[workload].game(task) for task in environment.tasks("train")[:2]]
    (first, asked), (second, _) = played(games[0], right=turns), played(games[1], right=turns // 2)
    assert asked == turns
    assert (first[:-1] == second[:-1]) is shared
    assert first[-1] != second[-1]
    assert len(first) == len(second)
    outcomes = [game.outcome() for game in games]
    assert [(outcome.reward, outcome.success) for outcome in outcomes] == [(1, True), (turns // 2 / turns, False)]


def test_a_contest_that_is_held_keeps_the_figures_of_the_rest_with_their_own_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def held(name: str, *_: object, **__: object) -> dict[str, Any]:
        contest = against_trl.CONTESTS[name]
        return {"title": contest.title, "goal": contest.goal, "ajet": {against_trl.TIMES: 10.0}}

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    tiny = {who: {against_trl.TIMES: 1.0} for who in ("ajet", "ajet, no server")}
    before = {"environments": {"arith": tiny, "guess": tiny}, "commit": "aaa", "date": "2026-01-01", "quick": False}
    (tmp_path / "against_trl.json").write_text(json.dumps(before))
    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    monkeypatch.setattr(against_trl, "held", held)
    monkeypatch.setattr(against_trl, "version", lambda _: "1")  # TRL need not be installed for this
    monkeypatch.setattr(against_trl.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(against_trl, "show_real", lambda *_: None)
    codes = []
    for contests in (["own"], ["shared", "tool"]):
        only = [word for name in contests for word in ("--only", name)]
        monkeypatch.setattr(sys, "argv", ["", "--model", str(tmp_path / "model"), *only, "--json", "--check"])
        codes.append(against_trl.main())
    figures = json.loads((tmp_path / "against_trl.json").read_text())
    assert codes == [0, 1]  # 10 times is more than the goal of prompts of their own, and less than the others'
    assert [figures[name] for name in before] == list(before.values())
    lines = list(HEADLINES["against_trl"](figures))
    assert [(line.goal, line.missed, line.at is None) for line in lines] == [
        (30, True, False), (7, False, False), (12, True, False),
        (0.8, False, True), (None, False, True), (1.2, True, True), (None, False, True),
    ]  # fmt: skip
