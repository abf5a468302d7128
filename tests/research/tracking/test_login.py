"""Whether copies of a study's logs go to W&B: W&B's own words decide, and the answer says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.controller.wandb import OnlineLogging, wandb_login

KEY = "k" * 40


def environment(home: Path, **given: str) -> dict[str, str]:
    return {"HOME": str(home), **given}


def logged_in(home: Path, host: str) -> None:
    (home / ".netrc").write_text(f"machine {host}\n  login user\n  password {KEY}\n")


def test_a_key_in_the_environment_or_of_a_login_means_that_copies_are_sent(tmp_path: Path) -> None:
    assert wandb_login(environment(tmp_path, WANDB_API_KEY=KEY)).online == OnlineLogging()
    logged_in(tmp_path, "api.wandb.ai")
    assert wandb_login(environment(tmp_path)).online == OnlineLogging()
    logged_in(tmp_path, "api.forge.coreweave.com")
    assert wandb_login(environment(tmp_path)).why.endswith("api.forge.coreweave.com")


def test_a_login_counts_for_its_own_server_only(tmp_path: Path) -> None:
    logged_in(tmp_path, "wandb.example:8080")
    found = wandb_login(environment(tmp_path, WANDB_BASE_URL="http://user:secret@wandb.example:8080/"))
    assert found.online == OnlineLogging(base_url="http://wandb.example:8080")
    assert wandb_login(environment(tmp_path, WANDB_BASE_URL="http://other.example")).online is None
    assert wandb_login(environment(tmp_path)).online is None


@pytest.mark.parametrize("mode", ["offline", "disabled", "dryrun"])
def test_a_mode_that_is_not_online_beats_a_key(tmp_path: Path, mode: str) -> None:
    found = wandb_login(environment(tmp_path, WANDB_API_KEY=KEY, WANDB_MODE=mode))
    assert (found.online, found.why) == (None, f"W&B's mode is {mode}")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "not logged in"), ({"WANDB_MODE": "online"}, "not logged in"),
        ({"WANDB_API_KEY": "short"}, "WANDB_API_KEY has 5"),
        ({"WANDB_API_KEY": KEY, "WANDB_DISABLED": "true"}, "WANDB_DISABLED"),
        ({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "wandb.example"}, "WANDB_BASE_URL"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_said(tmp_path: Path, given: dict[str, str], why: str) -> None:
    found = wandb_login(environment(tmp_path, **given))
    assert found.online is None
    assert found.why.startswith(why)
    assert KEY not in found.why


def test_the_settings_file_of_wandb_counts_where_the_environment_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "wandb"
    folder.mkdir(parents=True)
    (folder / "settings").write_text("[default]\nbase_url = https://wandb.example\nentity = lab\n")
    online = wandb_login(environment(tmp_path, WANDB_API_KEY=KEY, WANDB_PROJECT="mine")).online
    assert online == OnlineLogging(base_url="https://wandb.example", entity="lab", project="mine")
    (folder / "settings").write_text("[default]\nmode = offline\n")
    assert wandb_login(environment(tmp_path, WANDB_API_KEY=KEY)).online is None
    assert wandb_login(environment(tmp_path, WANDB_API_KEY=KEY, WANDB_MODE="online")).online == OnlineLogging()
    (folder / "settings").write_text("no settings")
    assert wandb_login(environment(tmp_path, WANDB_API_KEY=KEY)).online == OnlineLogging()


def test_a_netrc_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine\n")
    found = wandb_login(environment(tmp_path))
    assert (found.online, found.why[:11]) == (None, "cannot read")
