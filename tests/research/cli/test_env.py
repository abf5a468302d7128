"""`ajet env`: what is listed, shown, begun and checked, and that bad input is one line and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from research.controller.session import hold_lease
from research.installation.home import Home
from research.installation.machine import Capacity
from research.installation.servers import SwarmProcess, start_swarm
from studies import EventLog
from studies.log.event import EventType
from swarm.job import Job
from tests.research.cli.conftest import Ajet
from tests.research.environments.written import sums
from tests.research.fakes import append, create_study

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_environment" / "environment.py"
FAULTS = 1
SPLITS = """def tasks(self, split):
        return [Task(f"{split}-{i}", {"a": i, "b": A}) for i in range(N)]"""


def shown(ajet: Ajet, *arguments: str) -> Any:
    return ajet("env", *arguments, "--json").data


def edited(folder: Path, old: str, new: str) -> str:
    path = sums(folder) / "environment.py"
    path.write_text(path.read_text().replace(old, new))
    return str(folder)


@pytest.mark.slow
def test_what_init_writes_is_the_example_under_60_lines_and_it_is_sound(ajet: Ajet, tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
    folder = tmp_path / "my own"
    assert shown(ajet, "init", str(folder)) == {
        "wrote": str(folder / "environment.py"), "next": f"ajet env check '{folder}'",
    }  # fmt: skip
    found = shown(ajet, "check", str(folder))
    assert (found["faults"], found["remarks"], found["drawn_twice"]) == ([], [], True)
    assert found["tasks"] == {"train": 1024, "search": 256, "hidden": 512}
    assert set(found["kinds"]) == {"items asked for: 1", "items asked for: 2"}
    players = {each["player"]: each for each in found["players"]}
    assert players["oracle"]["success"] == 1
    assert 0.2 < players["demonstrations"]["success"] < 0.7  # a tiny model has something to imitate, and to learn
    assert found["measured"]["calls_per_episode"] == players["demonstrations"]["calls"]
    (listed,) = shown(ajet, "list")["brought"]
    assert (listed["name"], listed["from"]) == (found["environment"], str(folder))
    assert (listed["hidden_apart"], listed["measured_with"]) == (True, ["none"])
    facts = shown(ajet, "show", found["environment"])
    assert (bool(facts["example"]["success"]), bool(facts["example"]["tools"])) == (True, True)
    assert [each["model"] for each in facts["measured"]] == ["none"]


def test_init_leaves_an_environment_that_is_there_alone(ajet: Ajet, tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text("mine")
    ajet("env", "init", str(tmp_path)).refused("left as")
    assert (tmp_path / "environment.py").read_text() == "mine"


def test_list_names_what_is_built_in_and_what_addresses_there_are_and_begins_nothing(ajet: Ajet) -> None:
    found = shown(ajet, "list")
    assert {"guess", "arith"} <= {each["name"] for each in found["built_in"]}
    assert found["brought"] == []
    assert {each["scheme"] for each in found["addresses"]} >= {"reasoning-gym", "textarena", "gymnasium"}
    table = ajet("env", "list").out
    assert ("guess" in table, "ajet env init" in table) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("import surely_not_installed\n", "'surely_not_installed', which is not there (environment.py, line 1)"),
        ("x = = 3\n", "cannot read {}environment.py: environment.py, line 1: invalid syntax"),
        ("open(__file__ + 'x')\n", "No such file or directory: '{}environment.pyx' (environment.py, line 1)"),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_a_fault_of_the_code_is_told_by_the_users_own_file(
    ajet: Ajet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, expected: str, beside: bool
) -> None:
    folder = sums(tmp_path / "sums")
    path = folder / "environment.py"
    path.write_text(before + path.read_text())
    monkeypatch.chdir(tmp_path if beside else tmp_path / "sums")
    ended = ajet("env", "check", "sums" if beside else str(folder))
    assert (expected.format("sums/" if beside else "") in ended.line, ".draft" in ended.line) == (True, False)
    if "installed" in expected:
        assert ("in a requirements.txt beside" in ended.line, "ajet client" in ended.line) == (True, False)


@pytest.mark.slow
def test_a_record_that_no_client_holds_is_told_as_such(ajet: Ajet, tmp_path: Path) -> None:
    posed = "from pathlib import Path; self.more = Path(__file__).with_name('tasks.json').read_text()"
    folder = edited(tmp_path / "sums", "self.task, self.said = ", f"{posed}; self.task, self.said = ")
    Path(folder, "tasks.json").write_text("[]")
    ajet("env", "check", folder).refused("FileNotFoundError", f"a client's copy of {folder}/tasks.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "fault"),
    [("return Outcome(max(0.8, float(right)), right)", "0.8 of 1:"), ("raise RuntimeError('no judge')", "no judge")],
)
def test_a_fault_fails_a_check_and_is_listed_and_shown(ajet: Ajet, tmp_path: Path, outcome: str, fault: str) -> None:
    ended = ajet("env", "check", str(sums(tmp_path / "sums", outcome=outcome)), "--plays", "16")
    assert (ended.code, fault in ended.out) == (FAULTS, True)
    (listed,) = shown(ajet, "list")["brought"]
    assert [said for said in listed["faults"] if fault in said]
    count = len(listed["faults"])
    assert f"yes: {count} fault{'s' if count > 1 else ''}" in ajet("env", "list").out
    assert fault in ajet("env", "show", listed["name"]).out


@pytest.mark.slow
def test_no_task_that_is_hidden_is_shown(ajet: Ajet, tmp_path: Path) -> None:
    by_split = SPLITS.replace("A}", '{"train": 1, "search": 2, "hidden": 3}[split]}').replace("N)", "20)")
    folder = str(sums(tmp_path / "sums", tasks=by_split))
    said = ajet("env", "check", folder, "--json").out + ajet("env", "show", folder).out
    assert "train-" in said or "search-" in said
    assert "hidden-" not in said
    assert "its hidden tasks" in said


HELD = ("--tiny", "--set", "backend=fake", "--set", "episodes_per_step=16", "--plays", "4")


@pytest.mark.slow
def test_a_model_plays_search_tasks_on_a_real_server_and_what_it_took_is_kept(ajet: Ajet, home: Path) -> None:
    known = shown(ajet, "check", "arith", "--groups", "4", *HELD)["with_model"]
    assert (known["model"], known["job"]["episodes_per_step"]) == ("fake", 16)
    assert (known["base_success_n"], known["equal_groups_n"], known["group_size"]) == (32, 4, 8)
    assert known["calls_per_episode"] == 1
    for name in ("prompt_tokens", "sampled_tokens", "seconds_per_episode", "seconds_per_trained_episode", "startup_s"):
        assert known[name] > 0, name
    assert "Wilson" in ajet("env", "show", "arith").out
    assert list(home.glob("check-*")) == []  # the server and its folder are gone


@pytest.mark.slow
def test_a_check_is_confined(ajet: Ajet, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("research.cli.environments.runs_at_once", lambda jobs, check_of: Capacity(3))
    servers, variables = [], []

    def started(*arguments: Any, **options: Any) -> SwarmProcess:
        variables.append(options["variables"])
        servers.append(start_swarm(*arguments, **options))
        return servers[-1]

    monkeypatch.setattr("research.environments.check.start_swarm", started)
    folder, told = sums(tmp_path / "sums"), tmp_path / "told"
    path = folder / "environment.py"
    tells = f"import os\nopen({str(told)!r}, 'a').write(os.environ.get('AJET_TOKEN', '') + chr(10))\n"
    path.write_text(tells + path.read_text())
    known = shown(ajet, "check", str(folder), "--groups", "2", *HELD)["with_model"]
    assert variables == [{"OMP_NUM_THREADS": "1", "AJET_RUNS_AT_ONCE": "3"}]
    assert (known["runs_at_once"], known["job"]["max_tokens"]) == (3, Job().max_tokens)
    (server,) = servers
    assert set(told.read_text().split()) == {server.client_token}
    assert server.client_token != server.admin_token


@pytest.mark.slow
def test_a_brought_environment_is_removed_and_brought_again(ajet: Ajet, home: Path, tmp_path: Path) -> None:
    folder = str(sums(tmp_path / "sums"))
    name = shown(ajet, "check", folder, "--plays", "2")["environment"]
    assert f"did you mean {name}?" in ajet("env", "remove", "sums").line
    assert shown(ajet, "remove", name)["removed"] == name
    assert left_in(home) == set()
    assert shown(ajet, "list")["brought"] == []
    assert (home / "measured" / name).is_dir()
    assert shown(ajet, "show", folder)["environment"] == name
    assert f"removed  {name}" in ajet("env", "remove", name).out


SHOP = "shop@0123456789ab"


@pytest.fixture
def shop(home: Path) -> Iterator[EventLog]:
    """A brought environment, and a log of studies of which one may ask for it."""
    (home / "environments" / SHOP).mkdir(parents=True)
    with closing(EventLog(Home.locate().database)) as log:
        yield log


def test_an_environment_that_a_study_may_still_need_stays(ajet: Ajet, home: Path, shop: EventLog) -> None:
    create_study(shop, "in-need", topic=f"Does it learn {SHOP}?")
    create_study(shop, "of-another", topic="In shop@ffffffffffff?")
    ajet("env", "remove", SHOP).refused("in-need, not concluded")
    append(shop, "in-need", EventType.STUDY_STOPPED, {"reason": "x"}, actor="user")
    ajet("env", "remove", SHOP).refused("in-need, not concluded")
    assert left_in(home) == {SHOP}
    create_study(shop, "over", topic=f"Does it learn {SHOP}?")
    append(shop, "over", EventType.STUDY_CONCLUDED, {"reason": "answered"})
    ajet("env", "remove", SHOP).refused("in-need, not concluded")


@pytest.mark.parametrize(
    ("type", "reason"),
    [
        (EventType.STUDY_CONCLUDED, "answered"),
        (EventType.STUDY_STOPPED, "13 runs need 6 min; the budget is 60 s"),  # refused at its planning
    ],
)
def test_a_study_that_is_over_needs_it_no_more(ajet: Ajet, shop: EventLog, type: EventType, reason: str) -> None:
    create_study(shop, "over", topic=f"Does it learn {SHOP}?")
    append(shop, "over", type, {"reason": reason})
    create_study(shop, "at-work")
    with hold_lease(Home.locate(), shop, "at-work", print):
        assert shown(ajet, "remove", SHOP) == {"removed": SHOP, "bytes": 0}  # also one that cannot be read


@pytest.mark.usefixtures("shop")
def test_nothing_is_removed_while_a_study_begins(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.installation.home.BEGINNING_S", 0.2)
    with Home.locate().creation_lock():
        ajet("env", "remove", SHOP).refused("another process holds")
    assert shown(ajet, "remove", SHOP)["removed"] == SHOP


def left_in(home: Path) -> set[str]:
    return {path.name for path in (home / "environments").iterdir()} - {"secret"}
