"""`ajet swarm episodes`, `inspect` and `export` against a real server; the page in a real browser."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from research.cli import episodes
from research.cli.episodes import call_views, episode_page, episode_screen, episode_table, level_of, shown, sums
from swarm.wire import CallRecord, EpisodeList, EpisodeRecord, TokenSpan
from tests.research.cli.conftest import Ajet, own_server, small_job

CHROMIUM = shutil.which("chromium")


def span(*words: str, **sampled: Any) -> TokenSpan:
    special = tuple(place for place, word in enumerate(words) if word.startswith("<|"))
    return TokenSpan(ids=tuple(range(100, 100 + len(words))), texts=words, special=special, **sampled)


def call(
    index: int, parent: int | None, drift: str, *words: str, logprob: float = -0.05, cut: bool = False
) -> CallRecord:
    sampled = span(*words, logprobs=(logprob,) * len(words), versions=(3,) * len(words))
    context = span("<|user|>", "Name ", "a ", "town", ".\n", "<|assistant|>")
    return CallRecord(index=index, parent=parent, drift=drift, context=context, sampled=sampled, truncated=cut)


def episode(*calls: CallRecord, **fields: Any) -> EpisodeRecord:
    known = {"id": "e-1", "task_id": "t", "stream": "s", "kind": "train", "owner": "o", "state": "ended", "reward": 0.5}
    tokens = sum(len(one.sampled.ids) for one in calls)
    return EpisodeRecord(**{**known, **fields}, calls=len(calls), tokens=tokens, record=calls)


BRANCHED = episode(
    call(0, None, "start", "Lyon", ".", "<|end|>"),
    call(1, 0, "clean", "Nice", ",", " of", " course", logprob=-1.0, cut=True),
    call(2, 1, "clean", "Metz", logprob=-3.0),
    call(3, 0, "clean", "Brest", "", "é", logprob=-6.0),
    call(4, None, "fork", "Pau", "<|end|>"),
)


def drawn(record: EpisodeRecord, **how: Any) -> str:
    console = Console(width=100, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(episode_screen(record, **how))
    return console.export_text()


def test_a_conversation_stays_on_its_depth_and_what_branches_off_is_set_in() -> None:
    assert [(view.index, view.depth) for view in call_views(BRANCHED)] == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0)]


def test_a_call_counts_all_the_engine_saw() -> None:
    views = {view.index: view for view in call_views(BRANCHED)}
    assert views[2].prompt == 6 + 3 + 6 + 4 + 6
    total = sums(call_views(BRANCHED))
    assert (total.calls, total.new, total.sampled) == (5, 30, 13)
    assert total.mean_logprob == pytest.approx((3 * -0.05 + 4 * -1.0 - 3.0 + 3 * -6.0 + 2 * -0.05) / 13)


@pytest.mark.parametrize(("logprob", "level"), [(0.0, 0), (0.3, 0), (-0.2, 1), (-1.0, 2), (-4.0, 3), (-40.0, 4)])
def test_levels_are_of_probabilities(logprob: float, level: int) -> None:
    assert level_of(logprob) == level


def test_nothing_in_a_token_moves_the_cursor_or_hides() -> None:
    assert shown("a\x1b[31m\u202eb\x7f\t") == "a␛[31m<U+202E>b␡␉"
    hostile = episode(call(0, None, "start", "\x1b]0;title\x07", "x"), task_id="[red]\x1b[2J", owner="\u202eme")
    assert ("\x1b" in drawn(hostile), "[red]␛[2J" in drawn(hostile)) == (False, True)


@pytest.mark.parametrize(("terminal", "most"), [(True, 80), (False, 400)])
def test_an_episode_is_one_line_of_a_list_however_long_its_owner(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, most: int
) -> None:
    out = Console(width=80, file=io.StringIO(), force_terminal=terminal)
    monkeypatch.setattr(episodes, "console", lambda: out)
    episodes._print_rows(episode_table(EpisodeList(episodes=(episode(owner="o" * 90),) * 2)))
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 3
    assert all(len(Text.from_ansi(line).plain.rstrip()) <= most for line in lines)
    assert ("o" * 90 in lines[1]) is not terminal


def test_the_screen_shows_branches_cuts_sums_and_a_legend() -> None:
    seen = drawn(BRANCHED)
    for words in (
        "episode e-1", "call 3 after 0", "fork", "cut short", "Name a town.↵", "Brest·é", "and more", "-3.000",
    ):  # fmt: skip
        assert words in seen, words
    told = call(0, None, "start", "Lyon").model_copy(update={"reward": 0.25, "agent": "solver\x1b"})
    assert "solver␛   reward 0.25" in drawn(episode(told))
    assert "reward 0.25" not in drawn(episode(call(0, None, "start", "Lyon")))


def test_a_long_context_is_shortened_unless_all_is_asked_for() -> None:
    words = tuple(f"w{number} " for number in range(1000))
    long = CallRecord(index=0, parent=None, drift="start", context=span(*words), sampled=span())
    short = drawn(episode(long))
    assert ("760 tokens more" in short, "w500" in short, "w500" in drawn(episode(long), full=True)) == (
        True,
        False,
        True,
    )


def test_without_texts_there_are_ids_and_the_reason() -> None:
    sampled = TokenSpan(ids=(9,), texts=(), logprobs=(-0.1,), versions=(0,))
    context = TokenSpan(ids=(7, 8), texts=())
    bare = CallRecord(index=0, parent=None, drift="start", context=context, sampled=sampled)
    assert ("ids only" in drawn(episode(bare)), "7 8" in drawn(episode(bare))) == (True, True)
    assert "Ids only" in episode_page(episode(bare))


def test_the_page_escapes_what_a_model_says() -> None:
    page = episode_page(episode(call(0, None, "start", "<script>alert(1)</script>", '"><b>')))
    assert ("<script>alert" in page, "&lt;script&gt;alert(1)" in page) == (False, True)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (.ci/run installs it)")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
def test_the_page_needs_nothing_but_itself_fits_and_tells_of_a_token(tmp_path: Path, width: int, scheme: Any) -> None:
    from playwright.sync_api import sync_playwright

    path = tmp_path / "episode.html"
    path.write_text(episode_page(BRANCHED))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
        noticed: list[str] = []
        page.on("request", lambda request: noticed.append(request.url))
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.goto(path.as_uri())
        assert noticed == [path.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#call-2 .sampled i").first.hover()
        assert page.locator("#told").inner_text() == '"Metz"   id 100   log-prob -3.0000   policy version 3'
        browser.close()


@pytest.fixture
def lease(home: Path) -> Iterator[dict[str, Any]]:
    """An open episode of one call, on a server of this installation."""
    with own_server(home, job=small_job()) as running:
        lease = running.run(running.served.begin("town"))
        assert running.run(running.served.chat(lease, "between 1 and 9")).status == 200
        yield lease


def test_an_episode_is_listed_inspected_and_exported(ajet: Ajet, lease: dict[str, Any], tmp_path: Path) -> None:
    name = lease["episode_id"]
    assert name in ajet("swarm", "episodes").out
    assert json.loads(ajet("swarm", "episodes", "--json").out)["episodes"][0]["id"] == name
    assert "between 1 and 9" in ajet("swarm", "inspect", name).out
    record = EpisodeRecord.model_validate_json(ajet("swarm", "inspect", name, "--json").out)
    assert (record.id, record.calls) == (name, 1)
    page = tmp_path / "episode.html"
    assert str(page) in ajet("swarm", "inspect", name, "--html", str(page)).out
    assert name in page.read_text()
    trace = tmp_path / "trace.jsonl"
    told = json.loads(ajet("swarm", "export", "--all", "--to", str(trace), "--json").out)
    assert (told["bytes"] > 0, told["episodes"], told["pruned"]) == (True, 1, 0)
    (turn,) = json.loads(trace.read_text())["turns"]
    assert tuple(turn["completion_token_ids"]) == record.record[0].sampled.ids


@pytest.mark.usefixtures("lease")
def test_what_cannot_be_inspected_or_exported_is_one_line(ajet: Ajet, tmp_path: Path) -> None:
    ajet("swarm", "inspect", "nobody").refused("GET /episodes")
    out = str(tmp_path / "x")
    for arguments in ([], ["--all", "--episode", "e"]):
        ajet("swarm", "export", "--to", out, *arguments).refused("--episode", "--all")
    ajet("swarm", "export", "--all", "--to", str(tmp_path / "no" / "folder")).refused(str(tmp_path / "no"))
    ajet("swarm", "export", "--episode", "nobody", "--to", out).refused()
    assert not Path(out).exists()
