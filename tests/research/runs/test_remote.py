"""A server elsewhere is taken by one attempt at a time, told apart by lineage, and hands its log over whole."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from research.errors import BadInput, NotReady
from research.files import write_bytes
from research.installation.home import Home
from research.installation.servers import KEYS, parse_servers, reach, require_servers
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.launcher import ANEW_AFTER_S, ASK_AGAIN_S
from research.runs.remote import RESTARTED, RemoteServer, find_use, release
from studies import EventType
from studies.records.runs import SERVER_AWAY, SERVER_TAKEN, AttemptFailed
from swarm.backends.protocols import Backend
from swarm.client import AsyncSwarmClient
from swarm.errors import InvalidRequest, JobConflict, NotFound
from swarm.job import Job, Tracking
from swarm.server.service import tracked_in
from swarm.wire import ServerState
from tests.research.bench import STUDY, Bench
from tests.research.factories import make_order
from tests.research.fakes import evaluation
from tests.swarm.server.threads import Threaded, threaded

NOBODY = "http://127.0.0.1:1"


def keep(home: Path, keys: dict[str, str]) -> None:
    write_bytes(home / KEYS, json.dumps(keys).encode())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Threaded]:
    with threaded(tmp_path / "server", start=False) as running:
        keep(tmp_path, {running.served.url: running.served.admin})
        yield running


def order_of(server: Threaded | str, tmp_path: Path, attempt: int = 1, lineage: int = 1) -> AttemptSpec:
    url = server if isinstance(server, str) else server.served.url
    order = make_order(attempt, models=str(tmp_path / "models"))
    return order.model_copy(update={"study": "mine", "server": url, "lineage": f"{order.run_id}-a{lineage}"})


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
    with pytest.raises(AttemptFailed, match="trains group_size=8 seed 7 of mine") as refused:
        asyncio.run(mine.take())
    assert refused.value.code == SERVER_TAKEN
    asyncio.run(mine.let_go())
    assert "trains group_size=8 seed 7 of mine" in find_use(Home(tmp_path, ""), mine.order.server, "another")
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


def test_the_engine_that_an_attempt_of_the_study_left_behind_is_stopped(server: Threaded, tmp_path: Path) -> None:
    trial, home = Trial(server, tmp_path), Home(tmp_path, "")
    asyncio.run(trial.take())
    assert find_use(home, trial.order.server, "mine", [trial.order.tracking_id])
    asyncio.run(trial.check())
    assert not find_use(home, trial.order.server, "mine", ["another"])
    assert server.served.server.machine.state is ServerState.OFFLINE


def test_a_server_that_does_not_answer_is_no_fault_of_the_run(tmp_path: Path) -> None:
    keep(tmp_path, {NOBODY: "x"})
    remote = RemoteServer(AttemptFolder(tmp_path), order_of(NOBODY, tmp_path))
    for call in (remote.client_key(), remote.fetch_log()):
        with pytest.raises(AttemptFailed) as away:
            asyncio.run(call)
        assert away.value.code == SERVER_AWAY


def test_a_key_that_is_refused_counts_against_the_run_and_makes_no_server_free(
    server: Threaded, tmp_path: Path
) -> None:
    keep(tmp_path, {server.served.url: server.served.server.keys.role_key("client")})
    with pytest.raises(AttemptFailed) as refused:
        asyncio.run(RemoteServer(AttemptFolder(tmp_path), order_of(server, tmp_path)).client_key())
    assert refused.value.code == "server_refused"
    assert "cannot be used" in find_use(Home(tmp_path, ""), server.served.url, "s1")


def test_its_own_log_comes_back_as_it_is_there(server: Threaded, tmp_path: Path) -> None:
    trial, logs = Trial(server, tmp_path), tmp_path / "server" / "tracking" / "wandb"
    asyncio.run(trial.remote.fetch_log())  # none is there
    own = trial.order.tracking_id
    for run_id in (own, f"x{own}"):
        write_bytes(logs / f"offline-run-20260101_000000-{run_id}" / f"run-{run_id}.wandb", run_id.encode())
    asyncio.run(trial.remote.fetch_log())
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
    for path in (
        "secret",
        "checkpoints/../secret",
        "checkpoints/out",
        "/etc/passwd",
        "checkpoints/none",
        "tracking/\0",
    ):
        with pytest.raises(NotFound):
            asyncio.run(look(path))
    for key in ("client", "viewer"):
        weak = server.served.server.keys.role_key(key)  # type: ignore[arg-type]
        assert server.run(server.served.call("GET", "/files", weak)).status == 403


def test_of_a_training_that_is_over_its_server_keeps_the_last_weights(server: Threaded, tmp_path: Path) -> None:
    trial, saved = Trial(server, tmp_path), tmp_path / "server" / "checkpoints"
    job, url, home = trial.order.job, server.served.url, Home(tmp_path, "")
    for training in (job.digest()[:12], "0" * 12):
        for name in ("step-000009", "step-000010", "untrained-step-000000"):
            write_bytes(saved / training / name / "model.safetensors", b"w")
            write_bytes(saved / training / name / "optimizer.safetensors", b"o")
    release(home, url, job)
    left = {path.relative_to(saved).as_posix() for path in saved.rglob("*.safetensors")}
    assert {name for name in left if not name.startswith("0")} == {f"{job.digest()[:12]}/step-000010/model.safetensors"}
    assert sum(name.startswith("0") for name in left) == 6
    release(home, url, job)
    release(home, "http://127.0.0.1:9", job)  # nobody there

    async def on() -> None:
        async with AsyncSwarmClient(url, server.served.admin) as client:
            await client.ensure_training(job)
            for named in (job.digest(), job.digest()[:12] + "0000"):
                with pytest.raises(JobConflict):
                    await client.release(named)
            with pytest.raises(InvalidRequest):
                await client.release("../..")

    asyncio.run(on())


def test_a_tracker_without_a_directory_logs_in_the_server_s_folder(tmp_path: Path) -> None:
    assert tracked_in(Job(tracking=Tracking(directory="")), tmp_path).tracking == Tracking(directory=str(tmp_path))
    elsewhere = Job(tracking=Tracking(directory="here"))
    assert tracked_in(elsewhere, tmp_path) is elsewhere


def test_servers_are_named_with_commas() -> None:
    a, b = "http://a:1", "https://b/swarm"
    assert parse_servers(f" {a}/, gpu0,{b},{a}") == (a, "gpu0", b)
    for wrong in ("", " , ", "Not A Name"):
        with pytest.raises(BadInput):
            parse_servers(wrong)


def test_a_study_is_begun_with_servers_alone_that_take_an_admin_s_key(server: Threaded, tmp_path: Path) -> None:
    home, url, admin = Home(tmp_path / "me", ""), server.served.url, server.served.admin
    require_servers(home, [url], {"AJET_TOKEN": admin})
    assert (home.path / KEYS).stat().st_mode & 0o077 == 0
    with pytest.raises(BadInput, match="admin token"):
        require_servers(home, [url], {"AJET_TOKEN": server.served.server.keys.role_key("client")})
    assert reach(home, url).token == admin  # as it was
    require_servers(home, [url], {})
    with pytest.raises(BadInput, match="each server once"):
        require_servers(home, [url, f"{url}/"], {"AJET_TOKEN": admin})
    with pytest.raises(BadInput, match="one for each of the 2"):
        require_servers(home, [url, NOBODY], {"AJET_TOKEN": "1,2,3"})
    with pytest.raises(NotReady):
        require_servers(home, [url, NOBODY], {"AJET_TOKEN": f"{admin}, x"})
    require_servers(home, [url, NOBODY], {"AJET_TOKEN": f"{admin}, x"}, now=False)
    assert json.loads((home.path / KEYS).read_text()) == {url: admin}


def test_runs_wait_for_a_free_server_of_theirs(server: Threaded, tmp_path: Path) -> None:
    url = server.served.url
    bench = Bench(tmp_path / "bench", servers=[NOBODY, url], parallel=2)
    keep(bench.home.path, {NOBODY: "x", url: server.served.admin})
    other = Trial(server, tmp_path)
    asyncio.run(other.take())
    loop = bench.loop()
    for _ in range(4):
        loop.tick()
        bench.clock.advance(ASK_AGAIN_S)
    assert not [event for event in bench.events() if event.type is EventType.ATTEMPT_LAUNCHED]
    waits = next(note for note in bench.notes if "waits for a swarm server" in note)
    assert NOBODY in waits
    assert f"{url} trains group_size=8 seed 7 of mine" in waits
    asyncio.run(other.let_go())
    bench.tick_s = ASK_AGAIN_S
    runs = bench.drive(loop).runs.values()
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
    keep(bench.home.path, dict.fromkeys(urls, server.served.admin))

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
        keep(tmp_path, {server.served.url: server.served.admin})
        trial = Trial(server, tmp_path)
        with pytest.raises(AttemptFailed, match="there is no room for it") as failed:
            asyncio.run(trial.take())
        assert failed.value.code == "boot_failed"
        asyncio.run(trial.let_go())
        assert server.served.server.machine.state is ServerState.OFFLINE


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Which servers are free, in place of asking them."""
    known = {"http://a:1": True, "http://b:1": True}
    asked = "research.runs.launcher.find_use"
    monkeypatch.setattr(asked, lambda home, server, *_: "" if known[server] else f"{server} does not answer")
    return known


def test_arms_are_spread_over_servers_and_an_untrained_policy_is_evaluated_at_each(
    free: dict[str, bool], tmp_path: Path
) -> None:
    bench = Bench(tmp_path, servers=list(free), parallel=2)
    bench.tick_s = ASK_AGAIN_S
    every = bench.drive(bench.loop()).every_run.values()
    runs = [run for run in every if run.spec.phase == "confirm"]
    places = Counter((run.spec.arm, run.attempts[-1].server) for run in runs)
    for arm in {run.spec.arm for run in runs}:
        assert abs(places[arm, "http://a:1"] - places[arm, "http://b:1"]) <= 1
    whose = {run.run_id: run.attempts[-1].server for run in every}
    assert {whose[one.initial_of] == one.server for run in runs for one in run.attempts if one.initial_of} <= {True}


def test_a_training_whose_server_is_gone_is_begun_anew_at_another_one_after_a_while(
    free: dict[str, bool], tmp_path: Path
) -> None:
    def script(order: AttemptSpec) -> str:
        folder = AttemptFolder(bench.home.attempt(STUDY, order.run_id, order.attempt))
        if order.attempt > 1 or gone:
            return "ok"
        gone.append(order.server)
        free[order.server] = False
        folder.server.mkdir()
        folder.evaluation("initial").write_text(json.dumps(evaluation(order.spec, 0, 0.2)))
        return "lost"

    bench, gone = Bench(tmp_path, script, servers=list(free)), list[str]()
    bench.tick_s = ANEW_AFTER_S / 20
    state = bench.drive(bench.loop())
    [run] = [run for run in state.every_run.values() if len(run.attempts) > 1]
    first, second = run.attempts
    assert (first.server, second.resumes, second.initial_of) == (gone[0], None, "")
    assert second.server != first.server
    assert "was not to be had" in second.why
    waited = datetime.fromisoformat(second.launched) - datetime.fromisoformat(first.ended)
    assert waited.total_seconds() >= ANEW_AFTER_S


def test_a_server_that_ends_attempt_after_attempt_is_tried_ever_more_rarely(
    free: dict[str, bool], tmp_path: Path
) -> None:
    def script(order: AttemptSpec) -> str:
        orders.append(order)
        return "server away" if order.run_id == orders[0].run_id and order.attempt < 5 else "ok"

    bench, orders = Bench(tmp_path, script, servers=list(free)[:1]), list[AttemptSpec]()
    bench.tick_s = ASK_AGAIN_S
    run = bench.drive(bench.loop()).every_run[orders[0].run_id]
    began = [datetime.fromisoformat(one.launched).timestamp() for one in run.attempts]
    pauses = [later - earlier for earlier, later in pairwise(began)]
    assert len(pauses) == 4
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 2**4 * ASK_AGAIN_S
