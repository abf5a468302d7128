"""The thread that sends a study's logs: what it says, what it waits for, and that nothing waits long for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from research.controller import mirror as mirroring
from research.controller.mirror import SHOWN_S, AttemptCopy, CopyStatus, WandbMirror
from research.controller.options import make_mirror
from research.controller.wandb import OnlineLogging, WandbClient, wandb_login
from research.installation.home import Home
from research.runs.files import AttemptFolder
from research.text import warn
from studies import EventLog, StudyState, fold
from tests.research.factories import make_home
from tests.research.fakes import create_study
from tests.research.tracking.logs import write
from tests.studies.synthetic import Synthetic
from tests.wandb_standin import StandIn, standing_in

pytestmark = [pytest.mark.timeout(900)]
DEADLINE_S = 300.0


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with standing_in() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


class Study(Synthetic):
    def __init__(self, home: Home) -> None:
        super().__init__(home.study("s1"), study="s1")
        self.log.close()
        self.log = EventLog(home.database)
        self._home = home

    def trained(self, steps: int = 3) -> str:
        self.create()
        self.lock()
        spec = self.plan()[0]
        folder = self._home.attempt("s1", spec.run_id, 1)
        write(folder, f"{spec.run_id}-a1", steps=steps)
        self.launch(spec)
        self.end(spec)
        return spec.run_id


def mirror(home: Home, standin: StandIn, said: list[str]) -> WandbMirror:
    environ = {**os.environ, **standin.environment}
    return WandbMirror(home, "s1", OnlineLogging(base_url=standin.url), said.append, said.append, environ)


@pytest.mark.slow
def test_a_finished_run_is_sent_and_kept(home: Home, standin: StandIn) -> None:
    run_id = Study(home).trained()
    said: list[str] = []
    with mirror(home, standin, said) as shown:
        shown.settle()
        url = f"{standin.url}/standin/ajet/runs/{run_id}-a1"
        expected = [CopyStatus(run_id, 1, url, "sending"), CopyStatus(run_id, 1, url, "sent")]
        assert list(shown.updates()) == expected
    assert said == [f"W&B         {standin.url}/standin/ajet/groups/s1"]
    run = standin.run(f"{run_id}-a1")
    assert (run.steps, run.state, run.group, run.values["run_id"]) == ([1, 2, 3], "finished", "s1", "r1")


def begun(home: Home, **settings: Any) -> StudyState:
    with closing(EventLog(home.database)) as log:
        create_study(log, "s1", **settings)
        return fold(log.read("s1"))


@pytest.mark.parametrize(
    ("began", "environ", "why"),
    [
        ("http://127.0.0.1:9", {"WANDB_MODE": "offline"}, "mode is offline"),
        ("http://127.0.0.1:9", {"WANDB_BASE_URL": "http://127.0.0.1:10"}, "http://127.0.0.1:10 now"),
        ("http://127.0.0.1:9", {"WANDB_BASE_URL": "http://127.0.0.1:9"}, None),
        (None, {}, ""),
        (None, {"WANDB_MODE": "online"}, "began without"),
    ],
)
def test_a_study_keeps_what_it_began_with(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], began: str | None,
    environ: dict[str, str], why: str | None,
) -> None:  # fmt: skip
    state = begun(home, **({} if began is None else {"wandb": {"base_url": began}}))
    monkeypatch.delenv("WANDB_MODE")
    for name, value in {"WANDB_API_KEY": "k" * 40, **environ}.items():
        monkeypatch.setenv(name, value)
    assert (make_mirror(home, state, print, warn) is None) == (why is not None)
    told = capsys.readouterr().err
    assert (why or "") in told
    assert bool(told) == bool(why)


class Sent:
    """A client whose sendings end at once with code 0, as W&B's own does where its server refuses rows."""

    def __init__(self, shown: int) -> None:
        self.shown, self.started, self.running = shown, list[str](), False

    def start(self, command: str, output: Path, **given: object) -> object:
        self.started.append(command)
        return SimpleNamespace(poll=lambda: None if self.running else 0, end=lambda: None)

    def last_step(self, run_id: str) -> int:
        return self.shown


@pytest.fixture
def offline_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = tmp_path / "run-r1-a1.wandb"
    log.write_bytes(b"x" * 8)
    monkeypatch.setattr(mirroring, "find_log", lambda folder, tracking_id: log)
    return log


def test_rows_that_a_sending_left_out_are_added_once_in_the_time_that_rows_take(
    tmp_path: Path, offline_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "read_log", lambda path: SimpleNamespace(history={1: {}, 4: {}}, ended=True))
    clock, client = [0.0], Sent(shown=2)
    copy = AttemptCopy("r1-a1", AttemptFolder(tmp_path), cast("WandbClient", client), lambda: clock[0], settled=False)

    def look(seconds: float) -> None:
        until = clock[0] + seconds
        while clock[0] < until:
            copy.advance(over=True, may_send=True)
            clock[0] += 1.0

    look(2.0)
    offline_log.with_suffix(".wandb.syncstate").touch()
    look(60.0)
    assert client.started == ["send", "complete"]
    look(SHOWN_S - 70.0)
    assert client.started == ["send", "complete"]
    client.shown = 4
    look(60.0)
    assert (copy.settled, copy.reason) == (True, "")


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
