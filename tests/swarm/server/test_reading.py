"""Episodes of a server that ended, read from its folder without an engine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from swarm.errors import ServerFailed
from swarm.server.__main__ import answer_lines, main
from swarm.wire import EpisodeRecord
from tests.swarm.server.support import Served, job, serving


async def ask(folder: Path, *questions: object) -> list[dict[str, Any]]:
    """Return what a reader of a folder answers to questions, each in a line."""
    end, begin = os.pipe()
    with os.fdopen(begin, "w") as asked:
        asked.writelines(json.dumps(question) + "\n" for question in questions)
    told = StringIO()
    with os.fdopen(end) as lines:
        await asyncio.to_thread(answer_lines, folder, folder, lines, told)
    return [json.loads(line) for line in told.getvalue().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def play(served: Served) -> EpisodeRecord:
    lease = await served.begin("t", kind="eval")
    await served.chat(lease, "one")
    whole = EpisodeRecord.model_validate(await served.get(f"/episodes/{lease['episode_id']}", "viewer"))
    await served.end(lease, 1.0)
    return whole


@pytest.fixture
async def ended(tmp_path: Path) -> tuple[Path, EpisodeRecord]:
    async with serving(tmp_path / "server") as served:
        whole = await play(served)
    return tmp_path / "server", whole


async def test_what_a_server_wrote_is_read_with_its_texts_and_nothing_is_written(
    ended: tuple[Path, EpisodeRecord],
) -> None:
    folder, whole = ended
    before = files(folder)
    listed, found, nobody = await ask(folder, {"limit": 10}, {"episode": whole.id}, {"episode": "../" * 4000})
    assert [one["id"] for one in listed["episodes"]] == [whole.id]
    read = EpisodeRecord.model_validate(found["record"])
    assert (read.record, read.state, read.reward, found["reason"]) == (whole.record, "ended", 1.0, "")
    assert nobody["record"] is None
    assert files(folder) == before


async def test_of_a_server_that_was_killed_all_is_read_that_it_had_committed(tmp_path: Path) -> None:
    async with serving(tmp_path / "server") as served:
        whole = await play(served)
        killed = Path(shutil.copytree(tmp_path / "server", tmp_path / "killed"))
    assert (killed / "store.sqlite3-wal").stat().st_size
    before = files(killed)
    (found,) = await ask(killed, {"episode": whole.id})
    assert EpisodeRecord.model_validate(found["record"]).record == whole.record
    assert files(killed) == before


async def test_where_the_folder_of_the_model_is_gone_there_are_ids_and_the_reason(tmp_path: Path) -> None:
    wanted = job(model={"kind": "path", "path": str(tmp_path / "gone")})
    async with serving(tmp_path / "server", wanted) as served:
        whole = await play(served)
    with sqlite3.connect(tmp_path / "server/store.sqlite3") as store:  # as one of another backend
        (record,) = store.execute("SELECT job FROM trainings").fetchone()
        store.execute("UPDATE trainings SET job = ?", (record.replace('"fake"', '"local"'),))
    store.close()
    (found,) = await ask(tmp_path / "server", {"episode": whole.id})
    assert str(tmp_path / "gone") in found["reason"]
    read = EpisodeRecord.model_validate(found["record"])
    assert [call.sampled.ids for call in read.record] == [call.sampled.ids for call in whole.record]
    assert not any(call.sampled.texts for call in read.record)


async def test_what_cannot_be_read_is_an_answer_and_a_reader_that_nobody_asks_ends(
    ended: tuple[Path, EpisodeRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ended[0] / "store.sqlite3"
    with sqlite3.connect(store) as written:
        written.execute("UPDATE alembic_version SET version_num = 'later'")
    written.close()
    with pytest.raises(ServerFailed, match="later"):
        await ask(ended[0], {"limit": 1})
    store.write_bytes(b"junk" * 1000)
    assert [list(answer) for answer in await ask(ended[0], {"limit": 1}, {"episode": "e"})] == [["error"]] * 2
    monkeypatch.setattr("swarm.server.__main__.IDLE_S", 0.0)
    end, begin = os.pipe()
    with os.fdopen(end) as asked, os.fdopen(begin, "w"):
        await asyncio.to_thread(answer_lines, ended[0], ended[0], asked, StringIO())


def test_a_folder_that_is_no_servers_or_whose_server_runs_is_refused(
    ended: tuple[Path, EpisodeRecord], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    with FileLock(ended[0] / "server.lock"):
        for folder in (tmp_path / "none", ended[0]):
            assert main(["--read", str(folder)]) == 2
            assert len(capsys.readouterr().err.splitlines()) == 1
    assert list((tmp_path / "none").iterdir()) == []


@pytest.mark.slow
def test_a_reader_ends_with_who_asks_it(ended: tuple[Path, EpisodeRecord]) -> None:
    folder, whole = ended
    command = [sys.executable, "-m", "swarm.server", "--read", str(folder)]
    done = subprocess.run(command, input=json.dumps({"episode": whole.id}), capture_output=True, text=True, check=True)
    assert EpisodeRecord.model_validate(json.loads(done.stdout)["record"]).record == whole.record
