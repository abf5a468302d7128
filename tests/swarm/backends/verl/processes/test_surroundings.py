"""What the processes of a training inherit of the server's environment."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from swarm.backends.verl.processes.surroundings import allowed, forget_secrets, meet_at, needed_alone

SECRETS = ("AJET_TOKEN", "AJET_SERVER", "WANDB_API_KEY", "HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_URL")
NEEDED = ("PATH", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "HF_HOME", "LC_ALL",
          "TOKENIZERS_PARALLELISM")  # fmt: skip
ROOT = str(Path(__file__).parents[5])


def test_what_is_needed_is_passed_and_nothing_else() -> None:
    assert set(allowed(dict.fromkeys((*SECRETS, *NEEDED), "x"))) == set(NEEDED)


@pytest.mark.parametrize(
    ("path", "passed"),
    [(f"/elsewhere:{ROOT}", ROOT), ("/elsewhere", None), ("", None)],
    ids=["ours", "another", "none"],
)
def test_a_path_of_modules_says_where_this_package_is_alone(path: str, passed: str | None) -> None:
    assert allowed({"PYTHONPATH": path}).get("PYTHONPATH") == passed


def test_the_environment_is_as_before_once_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{ROOT}")
    before = dict(os.environ)
    with needed_alone():
        assert "AJET_TOKEN" not in os.environ
        assert os.environ["PYTHONPATH"] == ROOT
        os.environ["RAY_CLIENT_MODE"] = "0"  # as Ray itself sets some
    assert dict(os.environ) == {**before, "RAY_CLIENT_MODE": "0"}
    monkeypatch.delenv("RAY_CLIENT_MODE")


def test_a_replica_forgets_ray_s_token_and_what_is_the_server_s() -> None:
    with patch.dict(os.environ, dict.fromkeys(("AJET_TOKEN", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"), "x")):
        forget_secrets()
        assert "RAY_AUTH_MODE" in os.environ
        assert not {"AJET_TOKEN", "RAY_AUTH_TOKEN"} & set(os.environ)


def _has(*addresses: tuple[int, str]) -> list[SimpleNamespace]:
    return [SimpleNamespace(family=family, address=address) for family, address in addresses]


LINKS = {
    "lo": _has((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "192.0.2.9")),
    "eth0": _has(
        (socket.AF_PACKET, "02:00:00:00:00:01"), (socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "192.0.2.2"),
        (socket.AF_INET6, "2001:db8::1"),
    ),
    "eth1": _has((socket.AF_INET, "192.0.2.9")),
}  # fmt: skip
"""What a machine has of addresses; gloo listens at a link's first one."""


@pytest.mark.parametrize(
    ("told", "address", "link"),
    [
        pytest.param(None, "127.0.0.1", "lo", id="its own"),
        pytest.param(None, "192.0.2.1", "eth0", id="of a link"),
        pytest.param("eth7", "192.0.2.1", "eth7", id="as the node is told"),
        pytest.param(None, "192.0.2.2", None, id="a link's second one"),
        pytest.param(None, "2001:db8::1", None, id="after another family's"),
        pytest.param(None, "192.0.2.9", "eth1", id="of two links"),
        pytest.param(None, "203.0.113.7", None, id="of none"),
    ],
)
def test_ranks_meet_where_a_node_is_reached(
    told: str | None, address: str, link: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.net_if_addrs", lambda: LINKS)
    with patch.dict(os.environ, {} if told is None else {"GLOO_SOCKET_IFNAME": told}):
        meet_at(address)
        assert os.environ.get("GLOO_SOCKET_IFNAME") == link
