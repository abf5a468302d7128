import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.docker.address import Address, NoEngine, find


def docker_context(home: Path, name: str, endpoint: object, *, files: bool = False) -> dict[str, str]:
    """Write a docker context and make it the current one, as docker's client does."""
    key, folder = sha256(name.encode()).hexdigest(), home / ".docker"
    (folder / "contexts" / "meta" / key).mkdir(parents=True)
    (folder / "contexts" / "meta" / key / "meta.json").write_text(
        json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}})
    )
    if files:
        tls_files(folder / "contexts" / "tls" / key / "docker")
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))
    return {"HOME": str(home)}


def tls_files(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (folder / name).touch()
    return folder


def test_with_nothing_named_it_is_the_local_socket(tmp_path: Path) -> None:
    assert find({"HOME": str(tmp_path)}).url == "unix:///var/run/docker.sock"


def test_docker_host_goes_before_the_context_in_use(tmp_path: Path) -> None:
    environ = docker_context(tmp_path, "lab", {"Host": "ssh://lab"})
    assert find({**environ, "DOCKER_HOST": "unix:///a"}) == Address("unix:///a")


def test_the_context_in_use_is_found_in_the_files_of_dockers_client(tmp_path: Path) -> None:
    environ = docker_context(tmp_path, "lab", {"Host": "ssh://me@lab", "SkipTLSVerify": False})
    assert find(environ) == Address("ssh://me@lab", None, "docker context lab")


def test_docker_context_goes_before_the_one_in_use_and_default_is_the_local_socket(tmp_path: Path) -> None:
    environ = docker_context(tmp_path, "lab", {"Host": "ssh://lab"})
    assert find({**environ, "DOCKER_CONTEXT": "default"}).url == "unix:///var/run/docker.sock"


def test_a_contexts_tls_files_are_used(tmp_path: Path) -> None:
    environ = docker_context(tmp_path, "lab", {"Host": "tcp://10.0.0.7:2376", "SkipTLSVerify": False}, files=True)
    assert find(environ).certificates is not None


def test_a_context_that_verifies_nothing_is_refused(tmp_path: Path) -> None:
    environ = docker_context(tmp_path, "lab", {"Host": "tcp://10.0.0.7:2376", "SkipTLSVerify": True}, files=True)
    with pytest.raises(NoEngine, match="SkipTLSVerify"):
        find(environ)


def test_a_context_that_is_not_there_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="context 'lab'"):
        find({"HOME": str(tmp_path), "DOCKER_CONTEXT": "lab"})


def test_a_context_without_an_address_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="'Host'"):
        find(docker_context(tmp_path, "lab", {}))


def test_an_unreadable_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text("{")
    with pytest.raises(NoEngine, match=r"config\.json"):
        find({"HOME": str(tmp_path)})


@pytest.mark.parametrize("asked", [{"DOCKER_TLS_VERIFY": "1"}, {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": ""}])
def test_tls_without_a_named_folder_uses_that_of_dockers_client(tmp_path: Path, asked: dict[str, str]) -> None:
    folder = tls_files(tmp_path / ".docker")
    found = find({"HOME": str(tmp_path), "DOCKER_HOST": "tcp://10.0.0.7:2376", **asked})
    assert found.certificates == folder


def test_tls_files_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = tls_files(tmp_path / "certificates")
    (folder / "key.pem").unlink()
    with pytest.raises(NoEngine, match=r"missing: key\.pem"):
        find({"DOCKER_HOST": "tcp://10.0.0.7:2376", "DOCKER_CERT_PATH": str(folder)})


@pytest.mark.parametrize("host", ["tcp://10.0.0.7:2375", "tcp://build.example:2375", "tcp://[2001:db8::1]:2375"])
def test_plain_tcp_to_another_machine_is_refused(host: str) -> None:
    with pytest.raises(NoEngine, match="plain TCP"):
        find({"DOCKER_HOST": host})


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "tcp://localhost:2375", "tcp://[::1]:2375"])
def test_plain_tcp_within_the_machine_is_taken(host: str) -> None:
    assert find({"DOCKER_HOST": host}).url == host


@pytest.mark.parametrize(
    "host", ["npipe:////./pipe/docker_engine", "docker.sock", "tcp://10.0.0.7", "tcp://:9", "tcp://a:b", "ssh://",
             "ssh://-oProxyCommand=id", "ssh://-l@machine", "ssh://machine/path"],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_a_line(host: str) -> None:
    with pytest.raises(NoEngine, match="expected") as refusal:
        find({"DOCKER_HOST": host})
    assert "\n" not in str(refusal.value)


@given(st.sampled_from(["tcp", "ssh"]), st.from_regex(r"[a-z0-9]{12,20}", fullmatch=True))
def test_a_password_is_refused_and_never_shown(scheme: str, password: str) -> None:
    with pytest.raises(NoEngine) as refusal:
        find({"DOCKER_HOST": f"{scheme}://somebody:{password}@machine:2376", "DOCKER_TLS_VERIFY": "1"})
    assert password not in str(refusal.value)
    assert "somebody" not in str(refusal.value)


def test_people_see_no_user() -> None:
    assert Address("ssh://root@machine:22").shown == "ssh://machine:22"
