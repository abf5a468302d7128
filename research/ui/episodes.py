"""Episodes of runs and of swarm servers: asked of a server that runs, else read from what it left.

For an attempt that ended a server is started that only reads (`swarm.server.reading`): two at a time at most, each
ended five minutes after it was last asked, and with this process, whose pipe it reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError

from research.errors import NotReady
from research.files import read_json
from research.installation.base_job import python_of
from research.installation.home import Home
from research.installation.servers import find_swarm, validate_name, without_store
from research.runs.files import AttemptFolder, RunEvaluation
from studies import RunState
from studies.checks.conditions import CollectError, read_collected
from swarm.client.async_client import AsyncSwarmClient
from swarm.client.transport import server_folder
from swarm.errors import Unreachable
from swarm.wire import EpisodeRecord, EpisodeSummary

T = TypeVar("T")
MOST_READERS: Final = 2
IDLE_S: Final = 300.0
START_S: Final = 60.0
END_S: Final = 10.0
ANSWER_S: Final = 60.0
"""For all tokens of a long episode to be given their texts."""
MOST_LISTED: Final = 10_000
LISTED_LIVE: Final = 1_000
"""A training is not held up by who looks at it."""
PRUNED: Final = "its tokens went with old checkpoints (a job's `checkpoints_kept`)"


class Place(NamedTuple):
    """The folder of the server that has some episodes, and the backend whose Python reads its tokenizer."""

    folder: Path
    backend: str = "local"


class SeenEpisode(NamedTuple):
    """An episode, and why something of it is missing; empty where nothing is."""

    record: EpisodeRecord
    missing: str


@dataclass(slots=True)
class Reader:
    """A process that reads the store in a folder."""

    process: subprocess.Popen[bytes]
    url: str
    token: str = field(repr=False)
    used: float = 0.0
    listed: Sequence[EpisodeSummary] | None = None
    """What it listed, which changes no more."""

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.process.kill()
        self.process.wait()


StartReader = Callable[[Place, Path], Reader]


def start_reader(place: Place, models: Path) -> Reader:
    """Start a server that reads; NotReady with its last words where it does not come up."""
    python = sys.executable
    with suppress(NotReady):  # that of the backend may read tokenizers that this one does not
        python = python_of(place.backend)
    command = [python, "-m", "swarm.server", "--read", str(place.folder), "--models", str(models)]
    with TemporaryFile() as words:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, env=without_store(os.environ),
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        told = process.stdout.readline() if select.select([process.stdout], [], [], START_S)[0] else b""
        if told:
            address = json.loads(told)
            return Reader(process, address["url"], address["viewer"])
        Reader(process, "", "").end()
        words.seek(0)
        last = words.read().decode(errors="replace").strip().splitlines()[-1:] or ["it ended without a word"]
        raise NotReady(f"the episodes cannot be read: {last[0].removeprefix('ajet swarm server: ')}")


class EpisodeReaders:
    """Finds who tells of episodes, and asks; safe to be used by several threads."""

    def __init__(
        self, home: Home, start: StartReader = start_reader, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._home, self._start, self._now = home, start, now
        self._open: OrderedDict[Path, Reader] = OrderedDict()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def of_run(self, study: str, run: RunState) -> Place:
        """Return where the episodes of a run are: of its newest attempt that has any."""
        if not self._home.study(study).is_dir():
            raise NotReady(f"the files of study {study} lie in another installation: its episodes can be read there")
        if not run.attempts:
            raise NotReady(f"run {run.run_id} has not begun: it has no episodes yet")
        for attempt in reversed(run.attempts):
            folder = AttemptFolder(self._home.attempt(study, run.run_id, attempt.number)).server
            if (folder / "store.sqlite3").is_file():
                return Place(folder, str(run.spec.job.get("backend", "local")))
        raise NotReady(f"run {run.run_id} has no episodes here: its server wrote none yet, or its folder was removed")

    def of_server(self, name: str) -> Place:
        """Return where the episodes of a swarm server of this installation are; `-` is the one without a name."""
        return Place(server_folder(self._home.path, None if name == "-" else validate_name(name)))

    def list(self, place: Place) -> Sequence[EpisodeSummary]:
        """Return the newest episodes first. Raises NotReady, and SwarmError where a server does not answer."""
        if find_swarm(place.folder) is not None:
            return self._ask(place, lambda client: client.episodes(LISTED_LIVE)).episodes
        if (reader := self._open.get(place.folder)) is None or reader.listed is None:
            found = self._ask(place, lambda client: client.episodes(MOST_LISTED)).episodes
            if (reader := self._open.get(place.folder)) is None:
                return found
            reader.listed = found
        return reader.listed

    def read(self, place: Place, episode: str) -> SeenEpisode:
        async def look(client: AsyncSwarmClient) -> SeenEpisode:
            record = await client.episode(episode)
            if record.tokens and not record.record:
                return SeenEpisode(record, PRUNED)
            spans = [span for call in record.record for span in (call.context, call.sampled)]
            bare = any(span.ids and not span.texts for span in spans)
            reason = (await client.status()).reason if bare else None
            return SeenEpisode(record, reason or ("ids without texts: its server has no tokenizer" if bare else ""))

        return self._ask(place, look)

    def close(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            for reader in self._open.values():
                reader.end()
            self._open.clear()

    def end_idle(self) -> None:
        """End readers that nobody asked for a while, and look again as long as there are any."""
        with self._lock:
            for folder in [folder for folder, each in self._open.items() if self._now() - each.used >= IDLE_S]:
                self._open.pop(folder).end()
            self._timer = threading.Timer(IDLE_S / 5, self.end_idle) if self._open else None
            if self._timer is not None:
                self._timer.daemon = True
                self._timer.start()

    def _ask(self, place: Place, look: Callable[[AsyncSwarmClient], Coroutine[Any, Any, T]]) -> T:
        async def answer(url: str, token: str) -> T:
            async with asyncio.timeout(ANSWER_S), AsyncSwarmClient(url, token) as client:
                return await look(client)

        for again in (True, False):
            try:
                return asyncio.run(answer(*self._connect(place)))
            except (Unreachable, TimeoutError) as error:
                if not again or find_swarm(place.folder) is not None:
                    raise NotReady("the server of these episodes does not answer now; load the page again") from error
        raise AssertionError  # a server that ended meanwhile, as an attempt does, left what is read then

    def _connect(self, place: Place) -> tuple[str, str]:
        if (process := find_swarm(place.folder)) is not None:
            return process.url, str((read_json(place.folder / "tokens.json") or {}).get("viewer", ""))
        with self._lock:
            reader = self._open.pop(place.folder, None)
            if reader is None or reader.process.poll() is not None:
                while len(self._open) >= MOST_READERS:
                    self._open.popitem(last=False)[1].end()
                reader = self._start(place, self._home.models)
            reader.used = self._now()
            self._open[place.folder] = reader
            waits = self._timer is not None
        if not waits:
            self.end_idle()
        return reader.url, reader.token


def hidden_plays(folder: Path, run: RunState) -> RunEvaluation:
    """Return the collected evaluation of a run, held to its hash; NotReady says in one line why there is none."""
    if run.collected is None:
        raise NotReady("nothing is collected of it yet")
    try:
        return RunEvaluation.model_validate_json(read_collected(folder, run.collected["evaluation"]))
    except CollectError as error:
        raise NotReady(error.reason) from error
    except ValidationError as error:
        raise NotReady(f"its evaluation cannot be read by this version ({error.error_count()} fields)") from error
