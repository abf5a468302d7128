"""A server elsewhere is taken by one attempt at a time, told apart by lineage, and hands its log over whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from research.errors import BadInput, NotReady
from research.files import write_bytes
from research.installation.home import Home
from research.installation.servers import KEYS, keep_keys, parse_servers, reach, require_servers
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.launcher import ASK_AGAIN_S
from research.runs.remote import RESTARTED, RemoteServer, release
from studies import EventType
from studies.records.runs import SERVER_AWAY, SERVER_TAKEN, AttemptFailed
from swarm.backends.protocols import Backend
from swarm.client import AsyncSwarmClient
from swarm.errors import NotFound
from swarm.job import Job, Tracking
from swarm.server.service import tracked_in
from swarm.wire import ServerState
from tests.research.bench import STUDY, Bench
from tests.research.factories import make_order
from tests.research.fakes import evaluation
from tests.swarm.server.threads import Threaded, threaded

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Threaded]:
    with threaded(tmp_path / "server", start=False) as running:
        keep_keys(Home(tmp_path, ""), [running.served.url], {"AJET_TOKEN": running.served.admin})
        yield running


def order_of(server: Threaded | str, tmp_path: Path, attempt: int = 1, lineage: int = 1) -> AttemptSpec:
    url = server if isinstance(server, str) else server.served.url
    order = make_order(attempt, models=str(tmp_path / "models"))
    return order.model_copy(update={"server": url, "lineage": f"{order.run_id}-a{lineage}"})


class Trial:
    """An attempt at the server, and a client of its."""

    def __init__(self, server: Threaded, tmp_path: Path, attempt: int = 1, lineage: int = 1) -> None:
        self.order = order_of(server, tmp_path, attempt, lineage)
        self.folder = AttemptFolder(tmp_path / f"a{attempt}-{lineage}")
        self.folder.path.mkdir()
        self.remote = RemoteServer(self.folder, self.order)
        self.job = self.order.job_with_tracking(self.folder)

    async def take(self) -> None:
        async with AsyncSwarmClient(self.remote.url, self.remote.token) as client:
            await self.remote.take(client, self.job, 60.0)

    async def let_go(self) -> None:
        async with AsyncSwarmClient(self.remote.url, self.remote.token) as client:
            await self.remote.let_go(client)

    async def check(self) -> None:
        async with AsyncSwarmClient(self.remote.url, self.remote.token) as client:
            self.remote.check(await client.status())


def loaded(server: Threaded) -> str | None:
    tracking = server.served.server.job.tracking
    return None if tracking is None else tracking.run_id


def test_an_attempt_takes_a_server_whose_engine_is_off_and_lets_it_go(server: Threaded, tmp_path: Path) -> None:
    trial = Trial(server, tmp_path)
    asyncio.run(trial.take())
    assert loaded(server) == trial.order.tracking_id
    asyncio.run(trial.check())
    asyncio.run(trial.let_go())
    assert server.served.server.machine.state is ServerState.OFFLINE
    with pytest.raises(AttemptFailed) as stopped:
        asyncio.run(trial.check())
    assert stopped.value.code == SERVER_TAKEN


def test_what_others_train_is_left_alone(server: Threaded, tmp_path: Path) -> None:
    theirs, mine = Trial(server, tmp_path), Trial(server, tmp_path, attempt=2, lineage=2)
    asyncio.run(theirs.take())
    with pytest.raises(AttemptFailed, match="trains group_size=8 seed 7 of s1") as refused:
        asyncio.run(mine.take())
    assert refused.value.code == SERVER_TAKEN
    asyncio.run(mine.let_go())
    release(mine.order)
    asyncio.run(theirs.check())


def test_the_engine_of_an_attempt_that_is_over_works_for_the_next_one_of_its_lineage(
    server: Threaded, tmp_path: Path
) -> None:
    earlier, later = Trial(server, tmp_path), Trial(server, tmp_path, attempt=2)
    asyncio.run(earlier.take())
    began_with = server.served.server.opened
    asyncio.run(later.take())
    assert loaded(server) == later.order.tracking_id
    assert began_with is not None
    assert server.served.server.opened is not None
    assert server.served.server.opened.digest == began_with.digest  # it goes on with the same training
    with pytest.raises(AttemptFailed) as over:
        asyncio.run(earlier.check())
    assert over.value.code == RESTARTED
    asyncio.run(earlier.let_go())
    asyncio.run(later.check())


def test_two_lineages_of_one_job_are_two_trainings(server: Threaded, tmp_path: Path) -> None:
    one, other = Trial(server, tmp_path), Trial(server, tmp_path, attempt=2, lineage=2)
    assert one.job.digest() != other.job.digest()
    assert not other.job.continues(one.job)


def test_a_killed_attempt_s_engine_is_stopped_for_others(server: Threaded, tmp_path: Path) -> None:
    trial = Trial(server, tmp_path)
    asyncio.run(trial.take())
    release(trial.order)
    assert server.served.server.machine.state is ServerState.OFFLINE


def test_a_server_that_does_not_answer_is_no_fault_of_the_run(tmp_path: Path) -> None:
    keep_keys(Home(tmp_path, ""), [NOBODY], {"AJET_TOKEN": "x" * 32})
    remote = RemoteServer(AttemptFolder(tmp_path), order_of(NOBODY, tmp_path))
    for call in (remote.client_key(), asyncio.to_thread(remote.fetch_log)):
        with pytest.raises(AttemptFailed) as away:
            asyncio.run(call)
        assert away.value.code == SERVER_AWAY
    release(order_of(NOBODY, tmp_path))  # and says nothing


def test_its_own_log_comes_back_as_it_is_there(server: Threaded, tmp_path: Path) -> None:
    trial, logs = Trial(server, tmp_path), tmp_path / "server" / "tracking" / "wandb"
    trial.remote.fetch_log()  # none is there
    own = trial.order.tracking_id
    for run_id in (own, f"x{own}"):
        write_bytes(logs / f"offline-run-20260101_000000-{run_id}" / f"run-{run_id}.wandb", run_id.encode())
    trial.remote.fetch_log()
    found = {path.name: path.read_bytes() for path in trial.folder.path.rglob("*.wandb")}
    assert found == {f"run-{own}.wandb": own.encode()}


def test_files_are_handed_out_of_checkpoints_and_logs_alone(server: Threaded, tmp_path: Path) -> None:
    folder, admin = tmp_path / "server", server.served.admin
    write_bytes(folder / "checkpoints" / "d" / "step-1" / "weights", b"w")
    (folder / "checkpoints" / "out").symlink_to(folder / "secret")

    async def look(path: str) -> str:
        async with AsyncSwarmClient(server.served.url, admin) as client:
            return await client.fetch(path, tmp_path / "fetched")

    async def names(under: str) -> list[str]:
        async with AsyncSwarmClient(server.served.url, admin) as client:
            return [file.path for file in (await client.files(under)).files]

    assert asyncio.run(names("checkpoints")) == ["checkpoints/d/step-1/weights"]
    assert asyncio.run(look("checkpoints/d/step-1/weights")) == sha256(b"w").hexdigest()
    for path in ("secret", "checkpoints/../secret", "checkpoints/out", "/etc/passwd", "checkpoints/none"):
        with pytest.raises(NotFound):
            asyncio.run(look(path))
    for key in ("client", "viewer"):
        weak = server.served.server.keys.role_key(key)  # type: ignore[arg-type]
        assert server.run(server.served.call("GET", "/files", weak)).status == 403


def test_a_tracker_without_a_directory_logs_in_the_server_s_folder(tmp_path: Path) -> None:
    assert tracked_in(Job(tracking=Tracking(directory="")), tmp_path).tracking == Tracking(directory=str(tmp_path))
    elsewhere = Job(tracking=Tracking(directory="here"))
    assert tracked_in(elsewhere, tmp_path) is elsewhere


def test_servers_are_named_with_commas_and_their_keys_kept_for_the_owner_alone(tmp_path: Path) -> None:
    a, b = "http://a:1", "https://b/swarm"
    assert parse_servers(f" {a}/, gpu0,{b},{a}") == (a, "gpu0", b)
    for wrong in ("", " , ", "Not A Name"):
        with pytest.raises(BadInput):
            parse_servers(wrong)
    home = Home(tmp_path, "")
    keep_keys(home, (a, "gpu0", b), {"AJET_TOKEN": "one, other"})
    assert (reach(home, a).token, reach(home, b).token) == ("one", "other")
    keep_keys(home, (a,), {"AJET_TOKEN": "new"})
    keep_keys(home, (b,), {})
    assert json.loads((tmp_path / KEYS).read_text()) == {a: "new", b: "other"}
    assert (tmp_path / KEYS).stat().st_mode & 0o077 == 0
    with pytest.raises(BadInput, match="one for each of the 2"):
        keep_keys(home, (a, b), {"AJET_TOKEN": "1,2,3"})


def test_a_study_is_begun_with_servers_alone_that_take_an_admin_s_key(server: Threaded, tmp_path: Path) -> None:
    home, url = Home(tmp_path, ""), server.served.url
    require_servers(home, [url])
    keep_keys(home, [url], {"AJET_TOKEN": server.served.server.keys.role_key("client")})
    with pytest.raises(BadInput, match="admin token"):
        require_servers(home, [url])
    keep_keys(home, [NOBODY], {"AJET_TOKEN": "x"})
    with pytest.raises(NotReady):
        require_servers(home, [NOBODY])


def test_runs_wait_for_a_free_server_of_theirs(server: Threaded, tmp_path: Path) -> None:
    url = server.served.url
    bench = Bench(tmp_path / "bench", servers=[NOBODY, url], parallel=2)
    keep_keys(bench.home, [NOBODY, url], {"AJET_TOKEN": server.served.admin})
    other = Trial(server, tmp_path)
    asyncio.run(other.take())
    loop = bench.loop()
    for _ in range(4):
        loop.tick()
        bench.clock.advance(ASK_AGAIN_S)
    assert not [event for event in bench.events() if event.type is EventType.ATTEMPT_LAUNCHED]
    waits = next(note for note in bench.notes if "waits for a swarm server" in note)
    assert NOBODY in waits
    assert f"{url} trains group_size=8 seed 7 of s1" in waits
    asyncio.run(other.let_go())
    bench.tick_s = ASK_AGAIN_S
    runs = bench.drive(loop).state.runs.values()
    assert {run.status for run in runs} == {"collected"}
    assert {attempt.server for run in runs for attempt in run.attempts} == {url}
    assert {run.conditions.neighbours for run in runs if run.conditions is not None} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("written", [True, False])
def test_a_training_goes_on_where_it_was_begun_whenever_its_controller_is_killed(
    server: Threaded, tmp_path: Path, written: bool
) -> None:
    urls = [server.served.url, f"{server.served.url}/"]  # two names of one that is free
    bench, orders = Bench(tmp_path / "bench", servers=urls, parallel=2), list[AttemptSpec]()
    keep_keys(bench.home, urls, {"AJET_TOKEN": server.served.admin})

    def script(order: AttemptSpec) -> str:
        orders.append(order)
        folder = AttemptFolder(bench.home.attempt(STUDY, order.run_id, order.attempt))
        if order.attempt > 1:
            return "ok"
        folder.server.mkdir()
        folder.evaluation("initial").write_text(json.dumps(evaluation(order.spec, 0, 0.2)))
        return "lost"

    bench.sandbox.script, bench.tick_s = script, ASK_AGAIN_S
    state, killed = bench.drive_by_single_events(written=written)
    assert killed > 20
    for run in state.runs.values():
        first, second = (order for order in orders if order.run_id == run.run_id)
        assert second.resumes == 1
        assert first.server == second.server
        assert first.lineage == second.lineage == first.tracking_id
    assert {order.server for order in orders} == set(urls)


def test_an_engine_that_fails_is_not_left_to_others(tmp_path: Path) -> None:
    def broken(job: Job) -> Backend:
        raise RuntimeError("there is no room for it")

    with threaded(tmp_path / "server", start=False, backend=broken) as server:
        keep_keys(Home(tmp_path, ""), [server.served.url], {"AJET_TOKEN": server.served.admin})
        trial = Trial(server, tmp_path)
        with pytest.raises(AttemptFailed, match="there is no room for it") as failed:
            asyncio.run(trial.take())
        assert failed.value.code == "boot_failed"
        asyncio.run(trial.let_go())
        assert server.served.server.machine.state is ServerState.OFFLINE
