"""Prefect's command line for a worker and its jobs, in which one of them obeys a Cancel, and obeys none of before.

Worker and executor (`prefect flow-run execute`) both listen for events that say Cancelling, and are given those of the
last minute again: a study that is cancelled and tried again at once would be cancelled again. And a worker ends the
executor, which takes that for being asked to put the flow run back in line.
"""

import sys
from uuid import UUID

from prefect.runner._cancellation_manager import CancellationManager


async def cancel_if_asked(manager: CancellationManager, flow_run_id: UUID) -> None:
    """Cancel a flow run, as `CancellationManager.cancel_by_id` does, where its state is Cancelling."""
    flow_run = await manager._client.read_flow_run(flow_run_id)
    if flow_run.state is not None and flow_run.state.is_cancelling():
        await manager.cancel(flow_run)


async def leave_to_executor(manager: CancellationManager, flow_run_id: UUID) -> None:
    """Do nothing, in the place of `CancellationManager.cancel_by_id`."""


if __name__ == "__main__":
    from prefect.cli import app

    obey = leave_to_executor if sys.argv[1] == "worker" else cancel_if_asked
    CancellationManager.cancel_by_id = obey  # type: ignore[method-assign, assignment]
    app()
