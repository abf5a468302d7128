"""One Prefect server for a run of the tests: whoever asks first starts it, in any worker, and it ends with the run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from tests.lazily import lazy

if TYPE_CHECKING:
    from research.orchestration.server import PrefectServer

orchestration = lazy("research.orchestration.server")  # Prefect is not where the tests of verl run


def shared_folder(config: pytest.Config) -> Path:
    """Return the server's folder, the same in every worker of a run and in the process that started them."""
    own: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # what `tmp_path_factory` gives
    return (own.parent if hasattr(config, "workerinput") else own) / "prefect-of-all-workers"


def shared_server(config: pytest.Config) -> PrefectServer:
    """Return the server that answers for this run; what one test writes there the others see, so go by your own ids."""
    folder = shared_folder(config)
    with pytest.MonkeyPatch.context() as patch, FileLock(folder.with_suffix(".lock")):
        patch.delenv("PREFECT_API_URL", raising=False)
        if not folder.exists():
            folder.symlink_to(in_memory())
        server: PrefectServer = orchestration.ensure_server(folder, port=0)
        return server


def in_memory() -> str:
    """Make a folder in memory where there is such: on a busy disk a database stays locked too long for two workers."""
    memory = Path("/dev/shm")
    return tempfile.mkdtemp(prefix="ajet-test-", dir=memory if os.access(memory, os.W_OK) else None)


class EndsPrefect:
    """Ends the server when the last test of the run is over."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            folder = shared_folder(session.config)
            if folder.exists():
                orchestration.stop_server(folder)
                shutil.rmtree(folder.resolve())
