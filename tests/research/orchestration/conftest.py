"""A Prefect server for this folder's tests, a client of it, and studies that it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from research.controllers import controlling
from research.orchestration.server import PrefectServer, client_environment, ensure_server, stop_server
from studies import EventLog
from tests.research.bench import STUDY, Bench
from tests.research.designs import design
from tests.research.orchestration.shown import Told, Watched

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@pytest.fixture(scope="session")
def prefect_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("prefect")
    yield path
    stop_server(path)


@pytest.fixture(scope="session")
def server(prefect_folder: Path) -> PrefectServer:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        return ensure_server(prefect_folder, port=0)


@pytest.fixture(scope="session")
def client(server: PrefectServer, prefect_folder: Path) -> Iterator[SyncPrefectClient]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in client_environment(prefect_folder).items():
            patch.setenv(name, value)
        from research.orchestration.flow_run import connect  # Prefect reads its settings at import
    with connect(server.api) as found:
        yield found


@pytest.fixture
def watched(tmp_path: Path, client: SyncPrefectClient) -> Iterator[Watched]:
    bench = Bench(tmp_path, lambda order: "never", design=design(16))
    with closing(EventLog(bench.home.database, clock=bench.clock)) as log, controlling(bench.home, log, STUDY, print):
        yield Watched(bench, client, log)


@pytest.fixture
def told(tmp_path: Path, client: SyncPrefectClient) -> Iterator[Told]:
    told = Told(tmp_path, client)
    yield told
    told.synthetic.log.close()
