"""Handing a study over: each time a flow run of its own, and one line where the server does not take it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from research.errors import NoWorker
from research.installation.home import Home
from research.orchestration.server import PrefectServer
from research.serving import handing

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def giving(home: Home, server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> handing.Giving:
    monkeypatch.setattr(handing, "require_worker", lambda home: None)
    monkeypatch.setattr(handing, "ensure_server", lambda folder: server)
    monkeypatch.setattr(handing, "client_environment", lambda folder: {})  # as the client of these tests has it
    return handing.worker_of(home)


def test_a_study_given_again_is_another_flow_run_though_nothing_happened_to_it(
    tmp_path: Path,
    server: PrefectServer,
    client: SyncPrefectClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give = giving(Home.locate({"AJET_HOME": str(tmp_path)}), server, monkeypatch)
    first, second = give("s-1"), give("s-1")
    assert first != second
    assert client.read_flow_run(first.rpartition("/")[2]).parameters == {"study": "s-1"}  # type: ignore[arg-type]


def test_a_server_that_does_not_take_it_is_one_line_with_the_way_on(
    tmp_path: Path,
    client: SyncPrefectClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = PrefectServer("http://127.0.0.1:9", reused=True)
    give = giving(Home.locate({"AJET_HOME": str(tmp_path)}), nobody, monkeypatch)
    with pytest.raises(NoWorker, match="ajet study resume s-1 --detach") as refused:
        give("s-1")
    assert "\n" not in refused.value.message
