"""What all tests share: clients and evaluators run as processes unless a test asks for containers by name.

So a test does the same on a machine with a Docker Engine as on one without. A test that takes the fixture `engine` is
skipped where none answers, with the reason; AJET_TEST_DOCKER=required makes that a failure. AJET_TEST_BASE names the
base of the client image where that is not the usual one. The packages of `benchmarks/` (`rig`, `simlab`, `source`,
`performance`) are imported by their own names, as its scripts import them.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import settings

from research.installation.home import Home
from research.isolation.client_image import ensure_client_image
from sandboxes.docker.engine import ContainerEngine, EngineNotFound, connect
from sandboxes.images.build import Image
from swarm.environments import registry
from tests import golden
from tests.cpu_seconds import CpuSeconds
from tests.shared_prefect import EndsPrefect

if TYPE_CHECKING:
    from sandboxes.docker.container import DockerSandbox


sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))


WHOLLY_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the texts that tests see into golden.json")
    parser.addoption("--quick", action="store_true", help="leave out slow tests and full sizes, as `make test` does")
    parser.addoption(
        "--left", action="store_true", help="run only what --quick leaves out, as a part of parts.toml does"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose processes for this session and every command that a test starts; no test is judged by its speed.

    Nothing is sent to W&B, whoever is logged in here. What whoever starts the tests has set for signals (a shell's
    background job ignores SIGINT), for new files and for proxies is not the tests'.
    """
    gc.disable()  # until all is imported
    memory = Path("/dev/shm")  # nothing that --quick runs outlives it, and a disk is waited for at each commit
    if config.getoption("--quick") and os.access(memory, os.W_OK) and _is_roomy(memory):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)
    for proxy in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[proxy]
    os.environ["AJET_SANDBOX"] = "process"
    os.environ["WANDB_MODE"] = "offline"
    os.environ.setdefault("AJET_PRELOAD", "0")  # a test of a few runs does not import torch for many
    os.environ["AJET_MODEL_CACHE"] = "0"  # nothing of a test depends on what another left
    os.environ["AJET_ROUNDS"] = "1"  # a test that asks on says so
    config.pluginmanager.register(CpuSeconds(config))
    config.pluginmanager.register(EndsPrefect())
    golden.updating = config.getoption("--golden")
    settings.register_profile("quick", deadline=None, max_examples=15, derandomize=True)
    for name, count in (("full", 500), ("wide", 200)):  # --hypothesis-profile full
        settings.register_profile(name, deadline=None, max_examples=count, derandomize=False)
    settings.load_profile("quick")


def _is_roomy(memory: Path) -> bool:
    """Say whether there is room, and a script may be executed there: a container's memory may be mounted without."""
    found = os.statvfs(memory)
    return found.f_bavail * found.f_frsize > 4 << 30 and not found.f_flag & os.ST_NOEXEC


@pytest.fixture(autouse=True)
def _what_is_chosen_for_all_stays_so() -> Iterator[None]:
    """Put back what a test left changed of AJET_*: else all that follow it find no PostgreSQL, say, and are skipped.

    And what a command that runs in this process sets for its files.
    """
    before = _ours()
    yield
    os.umask(0o022)
    if (now := _ours()) != before:
        for name in now.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _ours() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("AJET_")}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --quick do not even read the files that are slow as a whole."""
    if config.getoption("--quick") and collection_path.suffix == ".py":
        return True if WHOLLY_SLOW.search(collection_path.read_text()) else None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep with --quick what `make test` runs, with --left the others."""
    config.stash[golden.COLLECTED] = {item.nodeid for item in items}
    quick, left = config.getoption("--quick"), config.getoption("--left")
    if quick or left:
        others = [item for item in items if is_left(item) != left]
        items[:] = [item for item in items if is_left(item) == left]
        config.hook.pytest_deselected(items=others)


def is_left(item: pytest.Item) -> bool:
    """Say whether a test is left to the parts of `make test-all`."""
    needs_server = {"container_engine", "prefect_server", "adapted_packages"} & set(getattr(item, "fixturenames", ()))
    return bool(needs_server) or any(item.get_closest_marker(mark) for mark in ("slow", "full"))


def pytest_collection_finish() -> None:
    """Leave what all tests and their libraries are made of out of every collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _folders_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let golden texts leave out where the folders of this run lie."""
    base = tmp_path_factory.getbasetemp()
    golden.temporary = str(base.parent if base.name.startswith("popen-") else base)


@pytest.fixture(scope="module", autouse=True)
def _environments_of_this_module() -> Iterator[None]:
    """Know at a module's beginning the built-in environments only: what others brought is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_CATALOGUE", registry._Catalogue())
        yield


def no_engine(reason: str) -> None:
    """Skip the test for want of an engine, or fail it where an engine is required."""
    if os.environ.get("AJET_TEST_DOCKER") == "required":
        pytest.fail(f"AJET_TEST_DOCKER=required, and {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def container_engine() -> Iterator[ContainerEngine]:
    """Return the engine that answers."""
    try:
        found = connect(os.environ)
    except EngineNotFound as error:
        no_engine(str(error))
        raise
    yield found
    found.client.close()


@pytest.fixture(scope="session")
def engine(container_engine: ContainerEngine) -> ContainerEngine:
    """Return it by its short name, which files that have another engine give to theirs."""
    return container_engine


@pytest.fixture(scope="session")
def image(engine: ContainerEngine, pytestconfig: pytest.Config) -> Image:
    """Return the client image of the sources as they are, made once by whichever worker comes first."""
    folder = Path(pytestconfig.cache.mkdir("ajet-images"))  # type: ignore[union-attr]  # the plugin is always there
    with FileLock(folder / "lock"):
        base = os.environ.get("AJET_TEST_BASE")
        return ensure_client_image(engine, Home(folder, ""), lambda line: None, base=base)


@pytest.fixture
def docker_sandbox(engine: ContainerEngine, tmp_path: Path) -> Iterator[DockerSandbox]:
    """Return the Docker sandbox of an installation of the test's own; what it started is removed afterwards."""
    from sandboxes.docker.container import DockerSandbox

    sandbox = DockerSandbox(tmp_path / "sandboxes", engine)
    yield sandbox
    sandbox.reap({})
