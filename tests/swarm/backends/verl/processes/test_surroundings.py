"""What the processes of a training inherit of the server's environment."""

from __future__ import annotations

import os
from pathlib import Path
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


@pytest.mark.parametrize(
    ("told", "address", "link"),
    [(None, "127.0.0.1", "lo"), ("eth7", "127.0.0.1", "eth7"), (None, "203.0.113.7", None)],
    ids=["by the address", "as the node is told", "no such address"],
)
def test_ranks_meet_where_a_node_is_reached(
    told: str | None, address: str, link: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", told or "")
    if told is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    meet_at(address)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == link
