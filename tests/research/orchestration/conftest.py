"""The run's Prefect server, a client of it, a browser, and studies that it shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright
from prefect.client.orchestration import SyncPrefectClient

from research.controller.session import hold_lease
from research.orchestration.prefect_api import connect
from research.orchestration.server import AUTH, PrefectServer, client_environment
from studies import EventLog
from tests.research.bench import STUDY, Bench
from tests.research.designs import design
from tests.research.orchestration.shown import PATIENCE_S, Asking, Told, Watched
from tests.shared_prefect import shared_folder, shared_server
from tests.studies.synthetic import Synthetic


@pytest.fixture(scope="session")
def prefect_server(pytestconfig: pytest.Config) -> PrefectServer:
    """Return the real one; a test that takes it is left to the parts."""
    return shared_server(pytestconfig)


@pytest.fixture(scope="session")
def server(prefect_server: PrefectServer) -> PrefectServer:
    return prefect_server


@pytest.fixture(scope="session")
def client(server: PrefectServer, pytestconfig: pytest.Config) -> Iterator[SyncPrefectClient]:
    with pytest.MonkeyPatch.context() as kept:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in client_environment(shared_folder(pytestconfig)).items():
                (kept if name == AUTH else patch).setenv(name, value)
            # Another worker writes to the same database, and a server whose database is locked answers 503; more tries
            # than these, and a test would wait for minutes until a server that is gone counts as gone.
            patch.setenv("PREFECT_CLIENT_MAX_RETRIES", "3")
        with connect(server.api) as found:
            yield found


@pytest.fixture
def watched(tmp_path: Path, client: SyncPrefectClient) -> Iterator[Watched]:
    bench = Bench(tmp_path, lambda order: "never", design=design(16))
    with closing(EventLog(bench.home.database, clock=bench.clock)) as log, hold_lease(bench.home, log, STUDY, print):
        yield Watched(bench, client, log)


@pytest.fixture
def asking(tmp_path: Path, client: SyncPrefectClient) -> Iterator[Asking]:
    bench = Bench(tmp_path, lambda order: "never", design=design(16), approve="plan")
    with closing(EventLog(bench.home.database, clock=bench.clock)) as log, hold_lease(bench.home, log, STUDY, print):
        asking = Asking(bench, client, log)
        asking.tick()
        asking.refresh()
        yield asking


@pytest.fixture
def told(tmp_path: Path, client: SyncPrefectClient) -> Iterator[Told]:
    told = Told(tmp_path, client)
    yield told
    told.synthetic.log.close()


@pytest.fixture
def page() -> Iterator[Page]:
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium on this machine (.ci/run installs it)")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--disable-quic"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=quiet)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        yield page
        browser.close()


@pytest.fixture
def synthetic(tmp_path: Path) -> Synthetic:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    return synthetic
