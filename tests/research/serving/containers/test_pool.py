"""What a container of the pool is given: no key by the server or in its options, but all that a process would have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from research.errors import BadPool
from research.installation.home import Home
from research.isolation.mode import choose
from research.serving.containers import contained, fitting
from research.serving.containers.contained import ENVIRONMENT
from research.serving.containers.mounts import interpreter, mounts
from research.serving.containers.pool import ContainerPool
from research.serving.containers.sight import Sight
from research.serving.supervision import environment_of_sittings, working
from sandboxes.docker.address import NoEngine
from sandboxes.docker.engine import ContainerEngine
from tests.research.cli.conftest import Ajet, ajet, home  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow

SECRET = "sk-nobody-may-see-this"


@pytest.fixture
def installation(tmp_path: Path) -> Home:
    own = Home.locate({"AJET_HOME": str(tmp_path / "installation")}).prepare()
    own.prefect.mkdir()
    return own


def pool_in(home: Home, *, local: bool = True) -> ContainerPool:  # noqa: F811
    engine = ContainerEngine(None, "unix://fake", local=local, version="28.0")  # type: ignore[arg-type]  # not asked
    given = ("/a:/a:ro",)
    return ContainerPool("host-1234", home, home.path, engine, "unix:///fake.sock", "sha256:ab", given)


def test_a_job_shares_this_machines_ids_and_is_given_no_key(
    installation: Home, server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_KEY, temporary_settings

    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with temporary_settings({PREFECT_API_KEY: SECRET}):
        job = pool_in(installation).job
    assert SECRET not in json.dumps(job)
    assert job["env"]["PREFECT_API_KEY"] is None, "Prefect's worker would write it into the container's options"
    assert (job["network_mode"], job["auto_remove"], job["image"]) == ("host", True, "sha256:ab")
    options = job["container_create_kwargs"]
    assert (options["pid_mode"], options["uts_mode"], options["cap_drop"]) == ("host", "host", ["ALL"])
    assert not any("docker.sock" in volume for volume in job["volumes"])


def test_a_sitting_has_the_keys_of_the_worker_from_a_file_that_only_its_user_reads(installation: Home) -> None:
    given = {
        "OPENAI_API_KEY": SECRET, "AJET_DATABASE_URL": "postgresql+psycopg://u:p@h/d", "PATH": "/outside/bin",
        "DOCKER_HOST": "tcp://elsewhere", "SSH_AUTH_SOCK": "/outside", "HOME": "/outside",
        "PREFECT_API_DATABASE_CONNECTION_URL": "postgresql+asyncpg://u:p@h/prefect",
    }  # fmt: skip
    kept = pool_in(installation).prepare(given)
    file = installation.prefect / ENVIRONMENT
    assert file.stat().st_mode & 0o777 == 0o600
    inside = json.loads(file.read_text())
    assert all(inside[name] == given[name] for name in ("OPENAI_API_KEY", "AJET_DATABASE_URL"))
    assert not {"PATH", "DOCKER_HOST", "SSH_AUTH_SOCK", "PREFECT_API_DATABASE_CONNECTION_URL"} & set(inside)
    assert kept["DOCKER_HOST"] == "unix:///fake.sock"
    assert "PREFECT_API_DATABASE_CONNECTION_URL" not in kept


def test_a_login_at_wandb_is_found_though_the_home_folder_is_another_one(installation: Home, tmp_path: Path) -> None:
    login = tmp_path / ".netrc"
    login.write_text("machine api.wandb.ai login user password x")
    environ = {"HOME": str(tmp_path)}
    pool_in(installation).prepare(environ)
    assert json.loads((installation.prefect / ENVIRONMENT).read_text())["NETRC"] == str(login)
    assert f"{login}:{login}:ro" in mounts(installation, tmp_path / "folder", environ)


def test_this_python_and_the_sources_are_read_and_the_installation_is_written(
    installation: Home, tmp_path: Path
) -> None:
    models = tmp_path / "disk" / "models"
    models.mkdir(parents=True)
    installation.models.symlink_to(models)
    found = mounts(installation, installation.path.parent, {})
    assert f"{installation.path}:{installation.path}:rw" in found
    assert f"{models}:{models}:rw" in found
    read = [Path(each.split(":")[0]) for each in found if each.endswith(":ro")]
    needed = (*interpreter(), Path(fitting.__file__))
    assert all(any(path.resolve().is_relative_to(of.resolve()) for of in read) for path in needed)


def test_the_environment_of_the_file_counts_over_the_images(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"KEY": "of the file", "LANG": "C.UTF-8"}))
    shows = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-I", contained.__file__, str(file), "-c", shows]
    image = {"PYTHONPATH": "/opt/of/the/image", "KEY": "of the image", "PREFECT__FLOW_RUN_ID": "1"}
    found = json.loads(subprocess.run(command, env=image, capture_output=True, text=True, check=True).stdout)
    assert (found["KEY"], found["PREFECT__FLOW_RUN_ID"]) == ("of the file", "1")
    assert "PYTHONPATH" not in found


def test_what_a_container_sees_otherwise_is_named(tmp_path: Path) -> None:
    here = Sight.here(tmp_path)
    assert here.lacks(here) is None
    other = Sight(here.python, here.ajet, here.host, "another boot", here.folder)
    assert "processes 'another boot'" in str(here.lacks(other))


def test_who_hands_a_study_over_knows_that_its_sittings_are_containers(installation: Home) -> None:
    with working(installation, contained=True), pytest.raises(NoEngine, match="container itself"):
        choose("docker", environment_of_sittings(installation, {}), installation, print)
    assert environment_of_sittings(installation, {}) == {}
    with working(installation):
        assert environment_of_sittings(installation, {}) == {}


def test_an_engine_of_another_machine_and_a_folder_that_docker_cannot_name_are_refused(
    monkeypatch: pytest.MonkeyPatch, installation: Home, tmp_path: Path
) -> None:
    away = pool_in(installation, local=False).engine
    monkeypatch.setattr(fitting, "connect", lambda environ: away)
    with pytest.raises(BadPool, match="on this machine"):
        fitting.local_engine()
    (odd := tmp_path / "a:b").mkdir()
    with pytest.raises(BadPool, match="without a colon"):
        fitting.fitting_pool(pool_in(installation).engine, "p", installation, odd, None, "http://nobody", print)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--work", "--pool", "docker"), "unix:///nobody"),
        (("--pool", "docker"), "--work with --pool"),
        (("--work", "--image", "debian"), "--pool docker with"),
    ],
)
def test_a_pool_that_cannot_be_is_one_line(
    ajet: Ajet,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    ended = ajet("up", *given)
    assert ended.code == 2
    assert named in ended.line
    with pytest.raises(NoEngine):
        fitting.local_engine()


def test_a_command_outlives_a_path_with_spaces(tmp_path: Path) -> None:
    from docker.utils import split_command

    spaced = Home.locate({"AJET_HOME": str(tmp_path / "two words")}).prepare()
    pool = pool_in(spaced)
    assert split_command(pool.job["command"]) == pool.arguments("-m", "research.serving.sitting")
