"""One flow run's work: what is begun is found again, before what was asked for is read again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from research.errors import ResearchError
from research.installation.home import Home
from research.orchestration.reconcile import SessionEnd
from tests.studies.synthetic import Synthetic

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from research.orchestration.flow_run import FlowRun, FlowRunState, RequestedWork

RUN = UUID("051ddaab-9b8d-41c4-8083-782f3c17c0b3")
GONE: Mapping[str, Any] = {"topic": "group size 4 vs 8 on arith", "model_path": "/gone/since"}


class Asked:
    """A flow run of `ajet-research` that nobody cancelled."""

    id = RUN

    def found(self) -> FlowRunState:
        from research.orchestration.flow_run import FlowRunState

        return FlowRunState(None, None)

    def asked(self) -> RequestedWork:
        from research.orchestration.flow_run import RequestedWork

        return RequestedWork("ajet-research", GONE, datetime.now(UTC))


@pytest.mark.usefixtures("client")
def test_a_flow_run_tried_again_goes_on_with_its_study_though_its_model_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from research.serving.sitting import Sitting

    begun = Synthetic(tmp_path, study="group-size-arith-3c17c0b3")
    begun.create()
    monkeypatch.setattr(Sitting, "_resume", lambda self, study, wished: SessionEnd("concluded", study))
    sitting = Sitting(Home.locate({"AJET_HOME": str(tmp_path)}), begun.log, cast("FlowRun", Asked()))
    assert sitting.work() == SessionEnd("concluded", "group-size-arith-3c17c0b3")


@pytest.mark.usefixtures("client")
def test_flow_runs_that_one_schedule_made_begin_a_study_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from research.serving.sitting import Sitting

    begun = Synthetic(tmp_path, study="group-size-arith-3c17c0b3")
    begun.create()
    next_day = Asked()
    next_day.id = UUID("051ddaab-9b8d-41c4-8083-782f00000001")
    sitting = Sitting(Home.locate({"AJET_HOME": str(tmp_path)}), begun.log, cast("FlowRun", next_day))
    monkeypatch.setattr(Sitting, "_resume", lambda self, study, wished: SessionEnd("concluded", study))
    with pytest.raises(ResearchError, match="/gone/since"):  # it asks for a study of its own
        sitting.work()


def test_one_whose_model_is_gone_before_it_began_is_refused(tmp_path: Path, client: SyncPrefectClient) -> None:
    from research.serving.sitting import Sitting

    other = Synthetic(tmp_path, study="group-size-arith-of-another")
    other.create()
    sitting = Sitting(Home.locate({"AJET_HOME": str(tmp_path)}), other.log, cast("FlowRun", Asked()))
    with pytest.raises(ResearchError, match="/gone/since"):
        sitting.work()
