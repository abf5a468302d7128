"""Episodes of a server that ended, read from its folder without an engine."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from starlette.testclient import TestClient

from swarm.client import SwarmClient
from swarm.server import make_app
from swarm.server.__main__ import main
from swarm.server.reading import ReadingServer, readable_store
from swarm.server.watching import Inspection
from swarm.wire import EpisodeRecord
from tests.swarm.server.support import Served, job, serving


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
    with readable_store(folder) as store:
        inspection = Inspection(ReadingServer(folder, folder, store))
        assert [one.id for one in (await inspection.episodes()).episodes] == [whole.id]
        read = await inspection.episode(whole.id)
    assert (read.record, read.state, read.reward) == (whole.record, "ended", 1.0)
    assert files(folder) == before


async def test_of_a_server_that_was_killed_all_is_read_that_it_had_committed(tmp_path: Path) -> None:
    async with serving(tmp_path / "server") as served:
        whole = await play(served)
        killed = Path(shutil.copytree(tmp_path / "server", tmp_path / "killed"))
    assert (killed / "store.sqlite3-wal").stat().st_size
    before = files(killed)
    with readable_store(killed) as store:
        assert (await Inspection(ReadingServer(killed, killed, store)).episode(whole.id)).record == whole.record
    assert files(killed) == before


async def test_where_the_folder_of_the_model_is_gone_there_are_ids_and_the_reason(tmp_path: Path) -> None:
    wanted = job(model={"kind": "path", "path": str(tmp_path / "gone")})
    async with serving(tmp_path / "server", wanted) as served:
        whole = await play(served)
    with sqlite3.connect(tmp_path / "server/store.sqlite3") as store:  # as one of another backend
        (record,) = store.execute("SELECT job FROM trainings").fetchone()
        store.execute("UPDATE trainings SET job = ?", (record.replace('"fake"', '"local"'),))
    store.close()
    with readable_store(tmp_path / "server") as url:
        reading = ReadingServer(tmp_path / "server", tmp_path, url)
        read = await Inspection(reading).episode(whole.id)
        assert str(tmp_path / "gone") in (reading.status().reason or "")
    assert [call.sampled.ids for call in read.record] == [call.sampled.ids for call in whole.record]
    assert not any(call.sampled.texts for call in read.record)


async def test_a_viewer_reads_and_changes_nothing(ended: tuple[Path, EpisodeRecord]) -> None:
    folder, whole = ended
    with readable_store(folder) as store:
        server = ReadingServer(folder, folder, store)
        client = TestClient(make_app(server), headers={"authorization": f"Bearer {server.keys.role_key('viewer')}"})
        assert client.get(f"/episodes/{whole.id}").json()["id"] == whole.id
        refused = [client.post("/job", json={}), client.post("/engine/start"), client.get("/samples")]
        assert [answer.status_code for answer in refused] == [403, 403, 403]
        assert client.get("/episodes", headers={"authorization": "Bearer x"}).status_code == 401
        assert client.get("/streams").status_code == 503


def test_a_folder_that_is_no_servers_or_whose_server_runs_is_refused(
    ended: tuple[Path, EpisodeRecord], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    with FileLock(ended[0] / "server.lock"):
        for folder, *options in ((tmp_path / "none",), (ended[0],), (ended[0], "--host", "0.0.0.0")):
            assert main(["--read", str(folder), *options]) == 2
            assert len(capsys.readouterr().err.splitlines()) == 1
    assert list((tmp_path / "none").iterdir()) == []


@pytest.mark.slow
def test_a_reader_prints_address_and_key_and_ends_with_its_input(ended: tuple[Path, EpisodeRecord]) -> None:
    folder, whole = ended
    command = [sys.executable, "-m", "swarm.server", "--read", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process, SwarmClient(*json.loads(process.stdout.readline()).values()) as client:
        assert [one.id for one in client.episodes(10).episodes] == [whole.id]
        assert client.episode(whole.id).record == whole.record
        process.stdin.close()
    assert process.returncode == 0
