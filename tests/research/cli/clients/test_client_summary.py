"""What is written of a run, when the words are an attacker's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from research.agents.run import AgentResult
from research.cli.clients.client_summary import show


def ended(action: str, result: dict[str, Any]) -> AgentResult:
    run = SimpleNamespace(request=SimpleNamespace(action=action, during=False))
    return cast(
        AgentResult,
        SimpleNamespace(run=run, result=result, status=None, refused={}, egress_log=None, restarts=(), reloads=0),
    )


@pytest.mark.parametrize("action", ["play", "evaluate"])
def test_an_agents_summary_is_neither_markup_nor_steers_a_terminal(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "[/nothing][link=file:///x]\x1b[2J"
    show(ended(action, {"dropped": {words: 1}, "episodes": words, "policy_version": words}))
    assert r"[/nothing][link=file:///x]\x1b[2J" in capsys.readouterr().out
