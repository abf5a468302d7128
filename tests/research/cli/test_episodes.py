from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from research.cli.episodes import episode_page, episode_screen, order_calls, prompt_lengths
from research.cli.listing import FILE, read_listing
from research.installation.home import Home
from studies.proof import DOES_NOT_FOLLOW
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan
from tests.research.cli.conftest import Ajet, own_server, small_job
from tests.research.fakes import create_study
from tests.studies.synthetic import STUDY, Synthetic


@pytest.fixture
def place(home: Path) -> Home:
    return Home.locate().prepare()


Reads = Callable[[], tuple[list[dict[str, Any]], int]]


@pytest.fixture
def reads(place: Home, finished: Synthetic, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """List studies, and count the logs that were read for it; what is said is the same without what was kept."""
    read, file = Mock(wraps=finished.log.read), place.path / FILE
    monkeypatch.setattr(finished.log, "read", read)

    def summaries() -> list[dict[str, Any]]:
        return [dict(line.summary) for line in read_listing(place, finished.log)]

    def look() -> tuple[list[dict[str, Any]], int]:
        read.reset_mock()
        found, count = summaries(), read.call_count
        kept = file.read_bytes()
        file.unlink()
        assert json.dumps(found) == json.dumps(summaries())
        file.write_bytes(kept)
        return found, count

    return look


@pytest.mark.slow
def test_a_verdict_whose_file_is_changed_is_doubted(finished: Synthetic, reads: Reads) -> None:
    assert [reads()[0][0]["verdicts"][0][name] for name in ("verdict", "by_margin")] == ["supported", False]
    path = next(finished.folder.glob("runs/*/evaluation.json"))
    before, times = path.read_bytes(), path.stat()
    path.write_bytes(before.replace(b"true", b"1234", 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # of the same size and time, it was still written to
    found, count = reads()
    assert (found[0]["verdicts"][0]["verdict"], count) == (DOES_NOT_FOLLOW, 1)
    path.unlink()
    assert "cannot be read" in reads()[0][0]["verdicts"][0]["reason"]
    path.write_bytes(before)
    assert reads()[0][0]["verdicts"][0]["verdict"] == "supported"
    (finished.folder / "design.lock").write_text("{}")
    assert reads()[0][0]["verdicts"][0]["verdict"] == DOES_NOT_FOLLOW


def test_a_log_that_cannot_be_read_is_named_each_time(place: Home, finished: Synthetic, reads: Reads) -> None:
    create_study(finished.log, "another")
    reads()
    with finished.log.transaction("write") as connection:
        connection.exec_driver_sql("DELETE FROM events WHERE study = 'another'")
        connection.exec_driver_sql(f"UPDATE events SET hash = 'x' WHERE study = '{STUDY}' AND seq > 5")
    for _ in range(2):
        found, count = reads()
        assert ([entry["status"] for entry in found], count) == (["corrupt"], 1)
    assert json.loads((place.path / FILE).read_text())["studies"] == {}


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


def test_a_conversation_stays_on_its_depth_what_branches_off_is_set_in_and_a_call_counts_all_the_engine_saw() -> None:
    ordered = [(call.index, depth) for call, depth in order_calls(BRANCHED.record)]
    assert ordered == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0)]
    assert prompt_lengths(BRANCHED.record)[2] == 6 + 3 + 6 + 4 + 6
    seen = drawn(BRANCHED)
    mean = (3 * -0.05 + 4 * -1.0 - 3.0 + 3 * -6.0 + 2 * -0.05) / 13
    assert "(30 of them new), 13 sampled" in seen
    assert f"{mean:.3f} in the mean" in seen


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
        "episode e-1", "call 3 after 0", "fork", "cut short", "Name a town.↵", "Brest·é", "and more", "-3.000",
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
