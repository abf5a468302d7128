"""Whether copies of a study's logs go to W&B: W&B's own words decide, and the answer says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.controller.wandb import OnlineLogging, wandb_login

KEY = "k" * 40
SET = {"WANDB_API_KEY": KEY}
CLOUD = OnlineLogging()
OWN = OnlineLogging(base_url="http://wandb.example:8080")
SETTINGS, NETRC = ".config/wandb/settings", ".netrc"
LAB = {SETTINGS: "[default]\nbase_url = https://wandb.example\nentity = lab\n"}
OFFLINE = {SETTINGS: "[default]\nmode = offline\n"}


def login(host: str) -> dict[str, str]:
    return {NETRC: f"machine {host}\n  login user\n  password {KEY}\n"}


@pytest.mark.parametrize(
    ("given", "files", "online", "why"),
    [
        (SET, {}, CLOUD, "WANDB_API_KEY is set"),
        ({}, login("api.wandb.ai"), CLOUD, "logged in to api.wandb.ai"),
        ({}, login("api.forge.coreweave.com"), CLOUD, "logged in to api.forge.coreweave.com"),
        # a login counts for its own server only
        ({"WANDB_BASE_URL": "http://user:secret@wandb.example:8080/"}, login("wandb.example:8080"), OWN, "logged in"),
        ({"WANDB_BASE_URL": "http://other.example"}, login("wandb.example:8080"), None, "not logged in to other"),
        ({}, login("wandb.example:8080"), None, "not logged in to api.wandb.ai"),
        # a mode that is not online beats a key
        ({**SET, "WANDB_MODE": "offline"}, {}, None, "W&B's mode is offline"),
        ({**SET, "WANDB_MODE": "dryrun"}, {}, None, "W&B's mode is dryrun"),
        ({**SET, "WANDB_DISABLED": "true"}, {}, None, "WANDB_DISABLED"),
        ({"WANDB_MODE": "online"}, {}, None, "not logged in"),
        ({"WANDB_API_KEY": "short"}, {}, None, "WANDB_API_KEY has 5"),
        ({**SET, "WANDB_BASE_URL": "wandb.example"}, {}, None, "WANDB_BASE_URL"),
        ({}, {NETRC: "machine\n"}, None, "cannot read"),
        # W&B's own file counts where the environment says nothing
        ({**SET, "WANDB_PROJECT": "mine"}, LAB,
         OnlineLogging(base_url="https://wandb.example", entity="lab", project="mine"), "WANDB_API_KEY"),
        (SET, OFFLINE, None, "W&B's mode is offline"), ({**SET, "WANDB_MODE": "online"}, OFFLINE, CLOUD, "WANDB_API"),
        (SET, {SETTINGS: "no settings"}, CLOUD, "WANDB_API_KEY is set"),
    ],
)  # fmt: skip
def test_copies_are_sent_where_nothing_stands_in_the_way_and_the_answer_says_why(
    tmp_path: Path, given: dict[str, str], files: dict[str, str], online: OnlineLogging | None, why: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    answer = wandb_login({"HOME": str(tmp_path), **given})
    assert (answer.online, answer.why.startswith(why), KEY in answer.why) == (online, True, False), answer
