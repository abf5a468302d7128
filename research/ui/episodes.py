"""Episodes of runs and of swarm servers: asked of a server that runs, else read from what it left.

For an attempt that ended a process is started that only reads (`swarm.server --read`) and answers over its pipes, two
at a time at most. It ends where nobody asked it for a while, and with this process.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
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
from swarm.errors import NotFound, Unreachable
from swarm.wire import EpisodeList, EpisodeRecord, EpisodeSummary

T = TypeVar("T")
MOST_READERS: Final = 2
MOST_ANSWERS: Final = 8
END_S: Final = 10.0
ANSWER_S: Final = 60.0
"""For all tokens of a long episode to be given their texts."""
MOST_LISTED: Final = 10_000
LISTED_LIVE: Final = 1_000
"""A training is not held up by who looks at it."""
LATER: Final = "load the page again"
PRUNED: Final = "its tokens went with old checkpoints (a job's `checkpoints_kept`)"


class EpisodePlace(NamedTuple):
    """The folder of the server that has some episodes, and the backend whose Python reads its tokenizer."""

    folder: Path
    backend: str = "local"


class SeenEpisode(NamedTuple):
    """An episode, and why something of it is missing; empty where nothing is."""

    record: EpisodeRecord
    missing: str


class StoreReader:
    """A process that reads a store and answers questions, one at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._answers: OrderedDict[str, Any] = OrderedDict()  # which change no more
        self._lock, self._words = Lock(), TemporaryFile()  # noqa: SIM115
        self._socket, other = socket.socketpair()
        self._socket.settimeout(ANSWER_S)
        self._lines = self._socket.makefile("rw")
        with other:
            self.process = subprocess.Popen(
                command, stdin=other.fileno(), stdout=other.fileno(), stderr=self._words, env=without_store(os.environ),
                start_new_session=True,
            )  # fmt: skip

    def ask(self, parse: Callable[[dict[str, Any]], T], **question: object) -> T:
        """Return what its answer is parsed to; NotReady says why there is none."""
        asked = json.dumps(question)
        with self._lock:
            if asked not in self._answers:
                try:
                    print(asked, file=self._lines, flush=True)
                    found = dict(json.loads(self._lines.readline()))
                except (OSError, ValueError):  # it ended, or takes too long
                    self.process.kill()
                    found = {"error": self._last_word()}
                if "error" in found:
                    raise NotReady(f"the episodes cannot be read: {found['error']}")
                self._answers[asked] = parse(found)
            self._answers.move_to_end(asked)
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
            answer: T = self._answers[asked]
        return answer

    def _last_word(self) -> str:
        if self._words.closed:
            return LATER
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines() or [f"their reader ended; {LATER}"]
        return lines[-1].removeprefix("ajet swarm server: ")

    def end(self) -> None:
        """Have it end after its answer."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.process.kill()
        self.process.wait()
        with self._lock, suppress(OSError):
            for each in (self._words, self._socket, self._lines):
                each.close()


def start_reader(place: EpisodePlace, models: Path) -> StoreReader:
    python = sys.executable
    with suppress(NotReady):  # that of the backend may read tokenizers that this one does not
        python = python_of(place.backend)
    return StoreReader([python, "-m", "swarm.server", "--read", str(place.folder), "--models", str(models)])


class EpisodeReaders:
    """Finds who tells of episodes, and asks; safe to be used by several threads."""

    def __init__(self, home: Home, start: Callable[[EpisodePlace, Path], StoreReader] = start_reader) -> None:
        self._home, self._start = home, start
        self._open: OrderedDict[tuple[object, ...], StoreReader] = OrderedDict()
        self._lock = Lock()

    def of_run(self, study: str, run: RunState) -> EpisodePlace:
        """Return where the episodes of a run are: of its newest attempt that has any."""
        for attempt in reversed(run.attempts):
            folder = AttemptFolder(self._home.attempt(study, run.run_id, attempt.number)).server
            if (folder / "store.sqlite3").is_file():
                return EpisodePlace(folder, str(run.spec.job.get("backend", "local")))
        if run.attempts and (server := run.attempts[-1].server):
            raise NotReady(f"run {run.run_id} trained at the swarm server {server}: see `ajet swarm episodes` there")
        raise NotReady(
            f"run {run.run_id} has no episodes here: none has begun, its folder was removed, or the files of its study "
            "lie in another installation"
        )

    def of_server(self, name: str) -> EpisodePlace:
        """Return where the episodes of a swarm server of this installation are; `-` is the one without a name."""
        return EpisodePlace(server_folder(self._home.path, None if name == "-" else validate_name(name)))

    def list(self, place: EpisodePlace) -> Sequence[EpisodeSummary]:
        """Return the newest episodes first. Raises NotReady, and SwarmError where a server does not answer."""
        found = _ask_server(place.folder, lambda client: client.episodes(LISTED_LIVE))
        if found is not None:
            return found.episodes
        return self._reader(place).ask(EpisodeList.model_validate, limit=MOST_LISTED).episodes

    def read(self, place: EpisodePlace, episode: str) -> SeenEpisode:
        async def look(client: AsyncSwarmClient) -> SeenEpisode:
            return _see(await client.episode(episode), (await client.status()).reason)

        def parse(answer: dict[str, Any]) -> SeenEpisode:
            if answer["record"] is None:
                raise NotFound(f"there is no episode {episode[:80]!r} among what is left of its server")
            return _see(EpisodeRecord.model_validate(answer["record"]), answer["reason"])

        return _ask_server(place.folder, look) or self._reader(place).ask(parse, episode=episode)

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].end()

    def _reader(self, place: EpisodePlace) -> StoreReader:
        """Return what reads a store as it is now, and end what was not asked for longest."""
        ended, stamps = list[StoreReader](), (path.stat().st_mtime_ns for path in place.folder.glob("store.sqlite3*"))
        try:
            with self._lock:
                key = place.folder, *stamps
                if key in self._open and self._open[key].process.poll() is not None:
                    ended.append(self._open.pop(key))
                while key not in self._open and len(self._open) >= MOST_READERS:
                    ended.append(self._open.popitem(last=False)[1])
                reader = self._open.pop(key, None) or self._start(place, self._home.models)
                self._open[key] = reader
        except OSError as error:
            raise NotReady(f"the episodes cannot be read: {error}") from error
        finally:
            for each in ended:
                each.end()
        return reader


def _ask_server(folder: Path, look: Callable[[AsyncSwarmClient], Coroutine[Any, Any, T]]) -> T | None:
    """Return what the server of a folder says, None where none runs, or it ends meanwhile, as an attempt does."""
    if (server := find_swarm(folder)) is None:
        return None

    async def answer(url: str) -> T:
        token = str((read_json(folder / "tokens.json") or {}).get("viewer", ""))
        async with asyncio.timeout(ANSWER_S), AsyncSwarmClient(url, token) as client:
            return await look(client)

    try:
        return asyncio.run(answer(server.url))
    except (Unreachable, TimeoutError) as error:
        if find_swarm(folder) is None:
            return None
        raise NotReady(f"the server of these episodes does not answer now; {LATER}") from error


def _see(record: EpisodeRecord, reason: str | None) -> SeenEpisode:
    if record.tokens and not record.record:
        return SeenEpisode(record, PRUNED)
    bare = any(span.ids and not span.texts for call in record.record for span in (call.context, call.sampled))
    return SeenEpisode(record, (reason or "ids without texts: its server has no tokenizer") if bare else "")


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
