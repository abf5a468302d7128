"""A swarm server elsewhere that trains for an attempt: taken, watched, let go of, its log fetched.

A server trains one job at a time, so that whoever finds its engine off has it. What is trained is told from all else on
that server by its `lineage`, under which a later attempt goes on with it; an engine that still works for an attempt
that is over is stopped and begun again, under the next attempt's name. A server that does not answer, was started
again, or trains for others is no fault of the run. The log comes back whole and hashed.
"""

import asyncio
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from research.errors import BadInput, NotReady
from research.installation.home import Home
from research.installation.servers import reach
from research.isolation.mode import one_line
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.wandb_log import find_log, read_log
from studies.checks.conditions import CollectError
from studies.records.runs import SERVER_AWAY, SERVER_TAKEN, AttemptFailed
from swarm.client import AsyncSwarmClient
from swarm.client.threads import background
from swarm.errors import EngineUnavailable, JobConflict, ServerFailed, SwarmError, Unreachable
from swarm.job import Job
from swarm.wire import ServerState, Status

RESTARTED = "server_restarted"
LOOK_S = 5.0
"""For a server to say whether it is free, or to hear that its engine is to stop: all runs of a study wait meanwhile."""
STOP_S = 300.0
"""For an engine to stop: an update that runs is waited for."""
LOGGED = 5
"""How often a log is fetched that does not come to its end: W&B may still write it when its run has finished."""
_LOG = re.compile(r"tracking/(wandb/offline-run-[\w-]+/run-([\w-]+)\.wandb)")


class RemoteServer:
    """The server of one attempt, which stands where a process of its own would (`research.runs.workers`)."""

    def __init__(self, folder: AttemptFolder, spec: AttemptSpec) -> None:
        try:
            at = reach(Home(Path(spec.models).parent, ""), spec.server)
        except (BadInput, NotReady) as error:
            raise AttemptFailed(SERVER_AWAY, one_line(error)) from error
        self.url, self.token = at.url, at.token
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
                raise self._failure(error) from error

    async def take(self, client: AsyncSwarmClient, job: Job, limit_s: float) -> Status:
        """Have the server train the attempt's job, and return once it serves."""
        try:
            if (await client.status()).state is not ServerState.OFFLINE:
                other = await client.job()
                if other is None or other.lineage != job.lineage or is_own(other, self._spec):
                    raise AttemptFailed(SERVER_TAKEN, f"{self.url} {describe_use(other)}")
                await client.stop()
            self._folder.server.mkdir(exist_ok=True)  # says that a training was begun there
            status = await client.ensure_training(job, timeout_s=limit_s)
        except JobConflict as error:
            raise AttemptFailed(SERVER_TAKEN, f"somebody else was faster: {error}") from error
        except SwarmError as error:
            raise self._failure(error) from error
        self._boot = status.boot
        return status

    def check(self, status: Status) -> None:
        """Raise AttemptFailed unless it is the engine that was taken which says so."""
        on = status.state is not ServerState.OFFLINE
        if self._boot is None or (on and status.boot == self._boot):  # None while it is being taken
            return
        if on and status.job_digest == self._spec.job.digest():
            raise AttemptFailed(RESTARTED, f"the swarm server at {self.url} was started again")
        raise AttemptFailed(SERVER_TAKEN, f"somebody stopped the training at {self.url}")

    async def let_go(self, client: AsyncSwarmClient) -> None:
        """Stop the engine if it works for the attempt, and fetch its log; what cannot be done is left."""
        if not self._folder.server.exists():
            return
        with suppress(SwarmError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                if (await client.status()).state is not ServerState.OFFLINE and is_own(await client.job(), self._spec):
                    await client.stop()
        with suppress(AttemptFailed):
            await self.fetch_log()

    async def complete_log(self) -> None:
        """Fetch the log until it comes to its end; one that does not is the collector's to refuse. AttemptFailed."""
        for _ in range(LOGGED):
            await self.fetch_log()
            with suppress(CollectError):
                log = find_log(self._folder.path, self._spec.tracking_id)
                if (await asyncio.to_thread(read_log, log)).ended:
                    return
            await asyncio.sleep(1.0)

    async def fetch_log(self) -> None:
        """Write the attempt's W&B log into its folder, as it is at the server now; AttemptFailed."""
        try:
            async with AsyncSwarmClient(self.url, self.token) as client:
                found = [match for file in (await client.files()).files if (match := _LOG.fullmatch(file.path))]
                for match in (match for match in found if match[2] == self._spec.tracking_id):
                    into = self._folder.path / match[1]
                    into.parent.mkdir(parents=True, exist_ok=True)
                    await client.fetch(match[0], into)
        except SwarmError as error:
            raise self._failure(error, "tracking_unreadable") from error

    def _failure(self, error: SwarmError, refused: str = "server_refused") -> AttemptFailed:
        """Return what an error means for the attempt: nothing, where the server does not answer."""
        code = "boot_failed" if isinstance(error, EngineUnavailable | ServerFailed) else refused
        return AttemptFailed(
            SERVER_AWAY if type(error) is Unreachable else code, f"the swarm server at {self.url}: {error}"
        )


def is_own(job: Job | None, spec: AttemptSpec) -> bool:
    """Return whether a job is what an attempt has trained, by its tracker's name."""
    return job is not None and job.tracking is not None and job.tracking.run_id == spec.tracking_id


def describe_use(job: Job | None) -> str:
    """Return what a server does, for people."""
    if job is None or job.tracking is None or job.tracking.group is None:
        return "trains for somebody else"
    return f"trains {job.tracking.name or 'a run'} of {job.tracking.group}"


def find_use(home: Home, server: str, study: str, running: Collection[str] = ()) -> str:
    """Return why a training cannot begin at a server now, for people; empty where it can. An engine that works for an
    attempt of the study, by its tracking id, that is none of those `running` was left behind, and is stopped. Blocks
    for LOOK_S."""

    async def look() -> str:
        at = reach(home, server)
        async with asyncio.timeout(LOOK_S), AsyncSwarmClient(at.url, at.token) as client:
            await client.files("tracking/-")  # which an admin's key alone may ask
            if (state := (await client.status()).state) is ServerState.OFFLINE:
                return ""
            job = await client.job()
            own = job is not None and job.tracking is not None and job.tracking.group == study
            if own and job is not None and job.tracking is not None and job.tracking.run_id not in running:
                await client.stop()  # it ends all the same where that takes longer
                return ""
            return f"{server} {describe_use(job)}{' (FAILED: stop it)' if state is ServerState.FAILED else ''}"

    try:
        return background().run(look())
    except TimeoutError:
        return f"{server} does not answer"
    except (BadInput, NotReady, SwarmError) as error:
        return f"{server} cannot be used: {one_line(error)}"


def release(home: Home, server: str, job: Job) -> bool:
    """Have a server keep of a run's training the last weights alone; False where it cannot now. Blocks for LOOK_S."""

    async def ask() -> None:
        at = reach(home, server)
        async with asyncio.timeout(LOOK_S), AsyncSwarmClient(at.url, at.token) as client:
            await client.release(job.digest())

    try:
        background().run(ask())
    except (TimeoutError, BadInput, NotReady, SwarmError):
        return False
    return True
