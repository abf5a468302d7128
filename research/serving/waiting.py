"""Flow runs of a study that wait for the worker, or were cancelled while they did: a study is handed over once.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled, Crashed, Scheduled

from research.installation.home import Home
from research.orchestration.deployments import RESUME, TAG, hand_over, known_deployment
from research.orchestration.reconcile import UserAction
from research.orchestration.session import said
from research.serving.orphans import MOST_FRUITLESS
from research.serving.supervision import sitting_lives

BEGINNING_S: Final = 120.0
"""How long a flow run that the worker took may have no process: it is being started."""
_OTHERS_S: Final = 60.0
"""How long others are waited for that hand a study over at the same time."""
_IN_VAIN: Final = "no worker takes this up any more, or what it asked for; the study was handed over anew"

WillDo = Callable[[FlowRun], bool]
"""Tells whether a flow run that waits will do what is asked for."""


class CancelledWhileWaiting(Exception):
    """Somebody cancelled the flow run that a study waited in, or was left in: it is not to be handed over by itself."""

    def __init__(self, flow_run: UUID) -> None:
        super().__init__(str(flow_run))
        self.flow_run = flow_run


def give_once(
    client: SyncPrefectClient, home: Home, study: str, key: str, *, again: bool, will_do: WillDo = lambda run: True
) -> FlowRun:
    """Return the flow run in which a worker takes a study up: the one that waits, else one that is made with this key.

    One that waits and will not do is closed. Raises CancelledWhileWaiting where the last one was cancelled, and nobody
    was there to carry that out, unless it is asked for `again` by a person. Every call raises what Prefect's client
    raises.
    """
    with _alone(home):
        return _given(client, home, study, key, again, will_do)


def give_or_stop(client: SyncPrefectClient, home: Home, study: str, key: str, stop: Callable[[], None]) -> bool:
    """Have a worker take up a study that was left; return False where it was cancelled, and call `stop` instead.

    Nobody hands the study over between that look and the stop, which would undo what they wished.
    """
    with _alone(home):
        try:
            _given(client, home, study, key, again=False, will_do=lambda run: True)
        except CancelledWhileWaiting as cancelled:
            stop()
            client.set_flow_run_state(cancelled.flow_run, Cancelled(message=said(UserAction.STOP)), force=True)
            return False
    return True


def _given(client: SyncPrefectClient, home: Home, study: str, key: str, again: bool, will_do: WillDo) -> FlowRun:
    runs, pool = _runs_of(client, study), _served_pool(client, home)
    for run in runs:
        if _waits(pool, run) and will_do(run):
            return run
    if not again and runs and _is_taken_back(runs[0]):
        raise CancelledWhileWaiting(runs[0].id)
    _close(client, runs)
    return _made(client, home, study, key)


def _made(client: SyncPrefectClient, home: Home, study: str, key: str) -> FlowRun:
    """Return the flow run of a key; one whose process was killed before it had the study is followed by so many."""
    runs = (hand_over(client, home, study, f"{key}/{number}") for number in range(MOST_FRUITLESS))
    for run in runs:
        if run.state is None or not run.state.is_crashed():
            break
    return run


class TakenInVain:
    """Flow runs that a worker of here took and then ended before it had started their process.

    How long one has none is counted from look to look, by a clock that stands still while the machine sleeps: the
    server's may be another, and nothing is started in a sleep. One that only comes up slowly is not begun twice, which
    ends Prefect's worker.
    """

    def __init__(self, home: Home, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._since: dict[UUID, float] = {}

    def put_back(self, client: SyncPrefectClient) -> None:
        """Put those back in line that had no process for `BEGINNING_S`; raises what Prefect's client raises."""
        now = self._clock()
        taken = {run.id: run for run in _taken(client, self._home) if not sitting_lives(self._home, run.id)}
        self._since = {each: self._since.get(each, now) for each in taken}
        for each, since in self._since.items():
            if now - since >= BEGINNING_S:
                again: State[None] = Scheduled(scheduled_time=taken[each].expected_start_time)
                client.set_flow_run_state(each, again, force=True)


def _taken(client: SyncPrefectClient, home: Home) -> Sequence[FlowRun]:
    """Return the flow runs that a worker of here took, and that have not begun."""
    if (pool := _served_pool(client, home)) is None:
        return []
    pending = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING])),
    )
    here = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    return client.read_flow_runs(flow_run_filter=pending, work_pool_filter=here)


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Let the worker and a command that hand the same study over look and give one after the other."""
    with FileLock(home.prefect / "handing.lock", timeout=_OTHERS_S, mode=0o600, fallback_to_soft=False):
        yield


def _runs_of(client: SyncPrefectClient, study: str) -> Sequence[FlowRun]:
    """Return the flow runs of a study's stretches, the newest first; a form for approval is none."""
    of_it = FlowRunFilter(tags=FlowRunFilterTags(all_=[TAG, study]))
    runs = client.read_flow_runs(flow_run_filter=of_it, sort=FlowRunSort.EXPECTED_START_TIME_DESC)
    return sorted(runs, key=lambda run: str(run.created), reverse=True)


def _served_pool(client: SyncPrefectClient, home: Home) -> str | None:
    """Return the pool that the worker of here serves, or served last; None before there was one."""
    known = known_deployment(client, home, RESUME)
    return None if known is None else known.work_pool_name


def _waits(pool: str | None, run: FlowRun) -> bool:
    """Return whether a worker of here, which serves a pool, will begin a flow run, or begins it now.

    One that was taken in vain is among them: the worker puts it back in line.
    """
    if (state := run.state) is None or pool is None or run.work_pool_name != pool:  # that pool has no worker
        return False
    return state.is_pending() or state.is_scheduled()


def _is_taken_back(run: FlowRun) -> bool:
    """Return whether a flow run of a study that nobody drives was cancelled: whoever stops the study says Cancelled."""
    if (state := run.state) is None:
        return False
    return state.is_cancelling() or (state.is_cancelled() and run.run_count == 0)


def _close(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> None:
    """End what is left of flow runs that wait in vain."""
    for run in runs:
        if (state := run.state) is not None and (state.is_scheduled() or state.is_pending()):
            client.set_flow_run_state(run.id, _in_vain(), force=True)


def _in_vain() -> State[None]:
    return Crashed(message=_IN_VAIN)
