"""A swarm server elsewhere that trains for an attempt: taken, watched, let go of, its log fetched.

A server trains one job at a time, so that whoever finds its engine off has it. What is trained is told from all else on
that server by its `lineage`, under which a later attempt goes on with it; an engine that still works for an attempt
that is over is stopped and begun again, under the next attempt's name. A server that does not answer, was started
again, or trains for others is no fault of the run. The log comes back whole and hashed.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

from research.errors import BadInput, NotReady
from research.installation.home import Home
from research.installation.servers import ANSWER_S, reach
from research.isolation.mode import one_line
from research.runs.files import AttemptFolder, AttemptSpec
from studies.records.runs import SERVER_AWAY, SERVER_TAKEN, AttemptFailed
from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.errors import EngineUnavailable, JobConflict, NotFound, ServerFailed, SwarmError, Unreachable
from swarm.job import Job
from swarm.wire import ServerState, Status

RESTARTED = "server_restarted"
LOOK_S = 3.0
"""For a server to say whether it is free: all runs of a study wait meanwhile."""
STOP_S = 300.0
"""For an engine to stop: an update that runs is waited for."""
_LOG = re.compile(r"tracking/(wandb/offline-run-[\w-]+/run-([\w-]+)\.wandb)")


class RemoteServer:
    """The server of one attempt, which stands where a process of its own would (`research.runs.workers`)."""

    def __init__(self, folder: AttemptFolder, spec: AttemptSpec) -> None:
        try:
            self._at = reach(Home(Path(spec.models).parent, ""), spec.server)
        except (BadInput, NotReady) as error:
            raise AttemptFailed(SERVER_AWAY, one_line(error)) from error
        self.url, self.token = self._at.url, self._at.token
        self._folder, self._spec = folder, spec
        self._boot: str | None = None

    async def wait(self) -> int:
        """Wait for ever: nobody sees its process end; who asks it finds that it is silent."""
        return await asyncio.Event().wait()

    def describe_end(self) -> str:
        return "it does not answer"

    async def client_key(self) -> str:
        async with AsyncSwarmClient(self.url, self.token) as client:
            try:
                return await client.key("client")
            except SwarmError as error:
                raise AttemptFailed(SERVER_AWAY, f"the swarm server at {self.url}: {error}") from error

    async def take(self, client: AsyncSwarmClient, job: Job, limit_s: float) -> Status:
        """Have the server train the attempt's job, and return once it serves."""
        try:
            if (await client.status()).state is not ServerState.OFFLINE:
                other = await client.job()
                if not is_over(other, job):
                    raise AttemptFailed(SERVER_TAKEN, f"{self.url} {describe_use(other)}")
                await client.stop()
            self._folder.server.mkdir(exist_ok=True)  # says that a training was begun there
            status = await client.ensure_training(job, timeout_s=limit_s)
        except JobConflict as error:
            raise AttemptFailed(SERVER_TAKEN, f"somebody else was faster: {error}") from error
        except Unreachable as error:
            raise AttemptFailed(SERVER_AWAY, f"the swarm server does not answer: {error}") from error
        except SwarmError as error:
            code = "boot_failed" if isinstance(error, EngineUnavailable | ServerFailed) else "server_refused"
            raise AttemptFailed(code, f"the swarm server at {self.url}: {error}") from error
        self._boot = status.boot
        return status

    def check(self, status: Status) -> None:
        """Raise AttemptFailed unless it is the engine that was taken which says so."""
        if self._boot is None or status.boot == self._boot:  # None while it is being taken
            return
        own = status.job_digest == self._spec.job.digest()
        if own and status.state is not ServerState.OFFLINE:
            raise AttemptFailed(RESTARTED, f"the swarm server at {self.url} was started again")
        raise AttemptFailed(SERVER_TAKEN, f"somebody stopped the training at {self.url}")

    async def let_go(self, client: AsyncSwarmClient) -> None:
        """Stop the engine if it is still the attempt's, and fetch its log; what cannot be done is left."""
        if not self._folder.server.exists():
            return
        with suppress(SwarmError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                status, job = await client.status(), await client.job()
                on = status.state is not ServerState.OFFLINE
                if on and self._boot in (status.boot, None) and is_own(job, self._spec):
                    await client.stop()
        with suppress(AttemptFailed):
            await asyncio.to_thread(self.fetch_log)

    def fetch_log(self) -> None:
        """Write the attempt's W&B log into its folder, as it is at the server now. Blocks; AttemptFailed."""
        own = self._spec.tracking_id
        with SwarmClient(self.url, self.token) as client:
            try:
                found = [match for file in client.files("tracking").files if (match := _LOG.fullmatch(file.path))]
                for match in (match for match in found if match[2] == own):
                    into = self._folder.path / match[1]
                    into.parent.mkdir(parents=True, exist_ok=True)
                    client.fetch(match[0], into)
            except NotFound:
                return  # nothing was logged yet: the collector says what is missing
            except SwarmError as error:
                raise AttemptFailed(SERVER_AWAY, f"the log did not come whole from {self.url}: {error}") from error


def is_own(job: Job | None, spec: AttemptSpec) -> bool:
    """Return whether a job is what an attempt has trained, by its tracker's name."""
    return job is not None and job.tracking is not None and job.tracking.run_id == spec.tracking_id


def release(spec: AttemptSpec) -> None:
    """Stop the engine that works for an attempt which was killed. Blocks; what cannot be done is left: a later attempt
    does it, and others are told whose training it is."""
    with suppress(BadInput, NotReady, SwarmError):
        at = reach(Home(Path(spec.models).parent, ""), spec.server)
        with SwarmClient(at.url, at.token) as client:
            if client.status(within_s=ANSWER_S).state is not ServerState.OFFLINE and is_own(client.job(), spec):
                client.stop()


def is_over(other: Job | None, mine: Job) -> bool:
    """Return whether what a server trains is of an earlier attempt at the same training; there is one at a time."""
    if other is None or other.tracking is None or mine.tracking is None:
        return False
    return other.lineage == mine.lineage and other.tracking.run_id != mine.tracking.run_id


def describe_use(job: Job | None) -> str:
    """Return what a server does, for people."""
    if job is None or job.tracking is None or job.tracking.group is None:
        return "trains for somebody else"
    return f"trains {job.tracking.name or 'a run'} of {job.tracking.group}"


def find_use(home: Home, server: str, lineage: str) -> str:
    """Return why a training cannot begin at a server now, for people; empty where it can. Blocks for LOOK_S."""
    try:
        at = reach(home, server)
        with SwarmClient(at.url, at.token) as client:
            if (state := client.status(within_s=LOOK_S).state) is ServerState.OFFLINE:
                return ""
            job = client.job()
    except (BadInput, NotReady, SwarmError) as error:
        return f"{server} does not answer: {one_line(error)}"
    if job is not None and job.lineage == lineage:
        return ""
    return f"{server} {describe_use(job)}{' (FAILED: stop it)' if state is ServerState.FAILED else ''}"
