from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from research.errors import NotReady
from research.installation.home import Home
from research.runs.files import AttemptFolder
from research.ui import episodes
from research.ui.episodes import MOST_READERS, PRUNED, EpisodePlace, EpisodeReaders, StoreReader, hidden_plays
from research.ui.pages.episode import page
from research.ui.site import Site, render
from studies import RunState
from swarm.errors import NotFound
from tests.research.cli.conftest import own_server, small_job
from tests.research.ui.conftest import view_of
from tests.swarm.server.support import job, serving


async def train(folder: Path) -> list[str]:
    async with serving(folder, job(steps=3, checkpoint_every=1)) as served:
        await served.play_to(3)
        return [each["id"] for each in (await served.get("/episodes"))["episodes"]]


@pytest.fixture
def run(site: Site, study: str) -> RunState:
    return next(run for run in site.state(study).every_run.values() if run.collected is not None)


@pytest.fixture
def trained(home: Home, study: str, run: RunState) -> list[str]:
    """Give a run of a study the store of a server that ended; return its episodes, the newest first."""
    return asyncio.run(train(AttemptFolder(home.attempt(study, run.run_id, run.attempts[-1].number)).server))


ECHO = "import sys; [print(line, end='', flush=True) for line in sys.stdin]"


class Started:
    """Starts processes that give a question back in the place of readers."""

    def __init__(self, home: Home, code: str = ECHO) -> None:
        self.readers = EpisodeReaders(home, lambda place, models: self.start())
        self.started, self.code = list[StoreReader](), code

    def start(self) -> StoreReader:
        self.started.append(StoreReader([sys.executable, "-c", self.code]))
        return self.started[-1]

    @property
    def lives(self) -> list[bool]:
        return [reader.process.poll() is None for reader in self.started]


@pytest.mark.slow
def test_episodes_of_a_run_that_ended_are_read_with_every_token_and_nothing_is_left_of_the_reader(
    home: Home, study: str, run: RunState, trained: list[str]
) -> None:
    readers = EpisodeReaders(home)
    place = readers.of_run(study, run)
    listed = readers.list(place)
    assert [each.id for each in listed] == trained
    seen = readers.read(place, trained[0])
    assert seen.missing == ""
    assert all(call.sampled.texts and call.sampled.logprobs for call in seen.record.record)
    gone = readers.read(place, trained[-1])
    assert (gone.record.record, gone.missing) == ((), PRUNED)
    with pytest.raises(NotFound):
        readers.read(place, "nobody")
    (reader,) = readers._open.values()
    readers.close()
    assert reader.process.poll() == 0
    for nowhere in (place.folder.parent, Path("/nowhere\n")):
        with pytest.raises(NotReady, match=r"store\.sqlite3"):
            readers.list(EpisodePlace(nowhere))
    readers.close()


def test_a_reader_is_started_once_for_a_store_as_it_is_and_two_at_a_time(home: Home, tmp_path: Path) -> None:
    started, store = Started(home), tmp_path / "store.sqlite3"
    store.touch()
    first = started.readers._reader(EpisodePlace(tmp_path))
    assert started.readers._reader(EpisodePlace(tmp_path)) is first
    assert first.ask(dict, limit=3) == {"limit": 3}
    os.utime(store, (1, 1))  # its server ran again
    assert started.readers._reader(EpisodePlace(tmp_path)) is not first
    started.readers._reader(EpisodePlace(tmp_path / "other"))
    assert started.lives == [False, True, True][: MOST_READERS + 1]
    started.started[1].process.kill()
    started.started[1].process.wait()
    started.readers._reader(EpisodePlace(tmp_path))
    assert started.lives == [False, False, True, True]
    started.readers.close()
    assert started.lives == [False] * 4
    with pytest.raises(NotReady):
        first.ask(dict, limit=4)


@pytest.mark.parametrize("code", ["input(); print('{')", "input(); raise SystemExit('no: room')", "while 1: input()"])
def test_a_reader_that_ends_or_hangs_is_told_in_one_line_and_is_gone(
    home: Home, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "ANSWER_S", 0.5)
    reader = Started(home, code).start()
    with pytest.raises(NotReady, match=r"room|load the page again"):
        reader.ask(dict, limit=1)
    reader.end()
    assert reader.process.poll() is not None


def test_a_run_that_has_no_episodes_says_why_in_one_line(home: Home, site: Site, study: str, run: RunState) -> None:
    readers = EpisodeReaders(home)
    for place in (lambda: readers.of_run(study, run), lambda: readers.of_run("elsewhere", run),
                  lambda: readers.of_run(study, RunState("r", run.spec))):  # fmt: skip
        with pytest.raises(NotReady) as refused:
            place()
        assert "\n" not in str(refused.value)
    assert readers.of_server("-").folder == home.path / "swarm"
    assert readers.of_server("mine").folder == home.path / "swarms/mine"


def test_words_of_hidden_plays_are_those_that_were_collected(site: Site, study: str, run: RunState) -> None:
    folder = site.folder(study)
    plays = hidden_plays(folder, run)
    assert plays.run_id == run.run_id
    file = folder / str(run.collected and run.collected["evaluation"]["path"])
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(NotReady, match="changed"):
        hidden_plays(folder, run)
    with pytest.raises(NotReady):
        hidden_plays(folder, RunState("r", run.spec))


def test_a_server_that_runs_is_asked_itself(home: Home, site: Site) -> None:
    with own_server(home.path, job=small_job()) as running:
        lease = running.run(running.served.begin("town"))
        assert running.run(running.served.chat(lease, "between 1 and 9")).status == 200
        place = site.readers.of_server("-")
        assert [each.id for each in site.readers.list(place)] == [lease["episode_id"]]
        view = view_of(server="-", episode="newest")
        html = render(page(site, view), view)
        assert ("between 1 and 9" in html, site.readers._open) == (True, {})
