from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from research.cli.episodes import episode_page, episode_screen
from studies.report.wording import number
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan
from tests.research.cli.conftest import Ajet, own_server, small_job
from tests.research.shown.records import BRANCHED, call, episode


def drawn(record: EpisodeRecord, **how: Any) -> str:
    console = Console(width=100, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(episode_screen(record, **how))
    return console.export_text()


def test_the_sums_of_an_episode_are_those_of_all_its_calls() -> None:
    seen = drawn(BRANCHED)
    mean = (3 * -0.05 + 4 * -1.0 - 3.0 + 3 * -6.0 + 2 * -0.05) / 13
    assert "(30 of them new), 13 sampled" in seen
    assert f"{number(mean)} in the mean" in seen


def test_nothing_in_a_token_moves_the_cursor_or_hides() -> None:
    hostile = episode(call(0, None, "start", "\x1b]0;title\x07", "x"), task_id="[red]\x1b[2J", owner="\u202eme")
    assert ("\x1b" in drawn(hostile), "[red]\\x1b[2J" in drawn(hostile)) == (False, True)


def test_a_value_stands_in_one_line() -> None:
    told = call(0, None, "start", "Lyon").model_copy(update={"agent": "sol\nver"})
    seen = drawn(episode(told, task_id="a\nstate  done\tb", owner="me\r\nyou"))
    assert [line for line in ("a state done b", "me you", "   sol ver") if line not in seen] == []


def test_the_screen_shows_branches_cuts_sums_and_a_legend() -> None:
    seen = drawn(BRANCHED)
    for words in (
        "episode e-1", "call 3 after 0", "fork", "cut short", "Name a town.↵", "Brest·é", "and more", "−3.000",
    ):  # fmt: skip
        assert words in seen, words
    told = call(0, None, "start", "Lyon").model_copy(update={"reward": 0.25, "agent": "solver\x1b"})
    assert r"solver\x1b   reward 0.25" in drawn(episode(told))
    assert "reward 0.25" not in drawn(episode(call(0, None, "start", "Lyon")))


def test_without_texts_there_are_ids_and_the_reason() -> None:
    sampled = TokenSpan(ids=(9,), texts=(), logprobs=(-0.1,), versions=(0,))
    context = TokenSpan(ids=(7, 8), texts=())
    bare = CallRecord(index=0, parent=None, drift="start", context=context, sampled=sampled)
    assert ("ids only" in drawn(episode(bare)), "7 8" in drawn(episode(bare))) == (True, True)


def test_the_page_escapes_what_a_model_says() -> None:
    page = episode_page(episode(call(0, None, "start", "<script>alert(1)</script>", '"><b>')))
    assert ("<script>alert" in page, "&lt;script&gt;alert(1)" in page) == (False, True)


@pytest.fixture
def lease(home: Path) -> Iterator[dict[str, Any]]:
    with own_server(home, job=small_job()) as running:
        lease = running.run(running.served.begin("town"))
        assert running.run(running.served.chat(lease, "between 1 and 9")).status == 200
        yield lease


def test_an_episode_is_listed_inspected_and_exported(ajet: Ajet, lease: dict[str, Any], tmp_path: Path) -> None:
    name = lease["episode_id"]
    assert (name in ajet("swarm", "episodes").out, "between 1 and 9" in ajet("swarm", "inspect", name).out) == (
        True,
        True,
    )
    assert ajet("swarm", "episodes", "--json").data["episodes"][0]["id"] == name
    record = EpisodeRecord.model_validate_json(ajet("swarm", "inspect", name, "--json").out)
    assert (record.id, record.calls) == (name, 1)
    page = tmp_path / "episode.html"
    assert str(page) in ajet("swarm", "inspect", name, "--html", str(page)).out
    assert name in page.read_text()
    trace = tmp_path / "trace.jsonl"
    told = ajet("swarm", "export", "--all", "--to", str(trace), "--json").data
    assert (told["bytes"] > 0, told["episodes"], told["pruned"]) == (True, 1, 0)
    assert EpisodeRecord.model_validate_json(trace.read_text()) == record


@pytest.mark.usefixtures("lease")
def test_what_cannot_be_inspected_or_exported_is_one_line(ajet: Ajet, tmp_path: Path) -> None:
    ajet("swarm", "inspect", "nobody").refused("GET /episodes")
    out = str(tmp_path / "x")
    for arguments in ([], ["--all", "--episode", "e"]):
        ajet("swarm", "export", "--to", out, *arguments).refused("--episode", "--all")
    ajet("swarm", "export", "--all", "--to", str(tmp_path / "no" / "folder")).refused(str(tmp_path / "no"))
    ajet("swarm", "export", "--episode", "nobody", "--to", out).refused()
    assert not Path(out).exists()
