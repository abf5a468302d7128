"""Handing a study over on a real server: once while a flow run waits, again where one came to nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from research.installation.home import Home
from research.serving.orphans import MOST_FRUITLESS
from research.serving.supervision import sitting

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State

pytestmark = pytest.mark.slow


class Left:
    """A study that nobody drives, and the worker that asks for it at each look."""

    def __init__(self, client: SyncPrefectClient, home: Home) -> None:
        self.client = client
        self.home = home
        self.study = f"left-{uuid4().hex[:8]}"

    def look(self) -> None:
        from research.serving.waiting import give_once  # Prefect reads its settings at import

        give_once(self.client, self.home, self.study, self.study, again=False)

    def asked(self) -> list[UUID]:
        """Return the flow runs that were asked for, the oldest first."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

        runs = self.client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[self.study])))
        return [run.id for run in sorted(runs, key=lambda run: str(run.created))]

    def state(self, run: UUID) -> State[None]:
        state = self.client.read_flow_run(run).state
        assert state is not None
        return state

    def set(self, run: UUID, state: State[None]) -> None:
        self.client.set_flow_run_state(run, state, force=True)


@pytest.fixture
def left(client: SyncPrefectClient, tmp_path: Path) -> Left:
    from research.orchestration.deployments import place_of
    from research.serving.pools import ProcessPool
    from research.serving.registration import register

    home = Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    home.prefect.mkdir(parents=True, exist_ok=True)
    register(client, home, ProcessPool(place_of(home), tmp_path))
    left = Left(client, home)
    left.look()
    return left


def test_it_is_asked_for_once_while_the_flow_run_is_on_its_way(left: Left) -> None:
    from prefect.states import Pending

    left.look()
    (run,) = left.asked()
    left.set(run, Pending())
    left.look()
    assert left.asked() == [run]


def test_one_whose_process_was_killed_before_it_had_the_study_is_followed_by_so_many_others(left: Left) -> None:
    from prefect.states import Crashed

    for number in range(1, MOST_FRUITLESS + 2):
        assert len(left.asked()) == min(number, MOST_FRUITLESS)
        left.set(left.asked()[-1], Crashed(message="killed"))
        left.look()


def test_one_that_somebody_cancelled_is_the_last(left: Left) -> None:
    from prefect.states import Cancelled

    from research.serving.waiting import CancelledWhileWaiting

    (run,) = left.asked()
    left.set(run, Cancelled())
    with pytest.raises(CancelledWhileWaiting):
        left.look()
    assert left.asked() == [run]


def test_one_that_a_worker_took_and_left_before_it_began_is_put_back_in_line(left: Left) -> None:
    from prefect.states import Pending

    from research.serving.waiting import BEGINNING_S, TakenInVain

    now = [0.0]
    looking = TakenInVain(left.home, clock=lambda: now[0])
    (run,) = left.asked()
    left.set(run, Pending(name="Submitting"))
    (left.home.prefect / "sittings").mkdir()
    with sitting(left.home, run):
        looking.put_back(left.client)
        now[0] = 2 * BEGINNING_S
        looking.put_back(left.client)
    for now[0] in (2 * BEGINNING_S, 3 * BEGINNING_S - 1):
        looking.put_back(left.client)
        left.look()
        assert left.state(run).is_pending(), "it had a process until a moment ago"
    now[0] = 3 * BEGINNING_S
    looking.put_back(left.client)
    assert left.state(run).is_scheduled()
    assert left.asked() == [run]


def test_a_sleep_of_the_machine_and_another_clock_of_the_server_begin_nothing_twice(left: Left) -> None:
    """Begun twice, Prefect's worker would end, as the flow run has its place in the worker's limit still."""
    from prefect.states import Pending

    from research.serving.waiting import TakenInVain

    (run,) = left.asked()
    left.set(run, Pending(timestamp=datetime.now(UTC) - timedelta(hours=8)))
    looking = TakenInVain(left.home)
    looking.put_back(left.client)
    looking.put_back(left.client)
    left.look()
    assert left.state(run).is_pending()
    assert left.asked() == [run]
