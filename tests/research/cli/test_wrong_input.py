"""Wrong input ends with one clear line on stderr and exit code 2; nothing is lost and nothing half written."""

from __future__ import annotations

import errno
import json
import socket
import sqlite3
from pathlib import Path

import pytest

from research.cli.study.request import refuse_server
from research.installation.home import Home
from research.study.session import Session
from tests.research.bench import STUDY, Bench
from tests.research.cli.conftest import Ajet
from tests.research.planner.scripted_endpoint import says, scripted_endpoint
from tests.studies.synthetic import Synthetic

TOPIC = "Does a larger group size help on arith?"


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("topic", ["", "   "])
def test_an_empty_topic(ajet: Ajet, home: Path, topic: str) -> None:
    ended = ajet("research", topic)
    assert ended.code == 2
    assert "expected a topic" in ended.line
    assert not home.exists()


@pytest.mark.parametrize("server", ["http://trainer:8700", "speaker"])
def test_a_study_does_not_run_on_a_server_that_is_there(ajet: Ajet, home: Path, server: str) -> None:
    ended = ajet("research", TOPIC, "--server", server)
    assert ended.code == 2
    assert "a study starts a server of its own for each of its runs" in ended.line
    assert f"found {server!r}. Start the study on that machine" in ended.line
    assert not home.exists()


def test_a_study_is_not_handed_to_a_worker_without_prefect(ajet: Ajet, home: Path) -> None:
    ended = ajet("research", TOPIC, "--detach", "--no-prefect")
    assert ended.code == 2
    assert "expected --detach without --no-prefect" in ended.line
    assert not home.exists()


def test_a_topic_nobody_can_read_without_a_language_model_lists_what_can_be_studied(ajet: Ajet) -> None:
    ended = ajet("research", "the meaning of life", "--no-prefect")
    assert ended.code == 2
    for word in ("group_size", "learning_rate", "guess", "arith", "OPENAI_BASE_URL", "--planner llm"):
        assert word in ended.line


def test_an_unknown_planner(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC, "--planner", "oracle")
    assert ended.code == 2
    assert "rules, llm" in ended.line
    assert "oracle" in ended.line


@pytest.mark.parametrize("budget", ["soon", "-5m", "10", "0s", "5x"])
def test_a_malformed_budget(ajet: Ajet, home: Path, budget: str) -> None:
    ended = ajet("research", TOPIC, f"--budget={budget}")
    assert ended.code == 2
    assert "such as 90s, 10m" in ended.line
    assert not home.exists()


def test_a_budget_too_small_is_refused_with_one_that_does(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC, "--budget", "20s", "--no-prefect")
    assert ended.code == 2
    assert "use --budget" in ended.line
    (study,) = json.loads(ajet("study", "list", "--json").out)
    assert study["status"] == "stopped"
    assert "use --budget" in study["reason"]


def test_a_planner_without_an_endpoint(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC, "--planner", "llm", "--planner-model", "m")
    assert ended.code == 2
    assert "OPENAI_BASE_URL" in ended.line


def test_an_endpoint_nobody_listens_at(ajet: Ajet, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{closed_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    ended = ajet("research", TOPIC, "--planner", "llm", "--planner-model", "m", "--budget", "20s", "--no-prefect")
    assert ended.code == 2
    assert f"127.0.0.1:{closed_port}" in ended.line, "one line at once: nobody was ever there to wait for"
    assert "expected an OpenAI-compatible endpoint" in ended.line
    assert "secret-key" not in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", [("research", TOPIC), ("study", "plan", TOPIC)])
def test_the_old_name_of_the_planners_model_is_refused_with_the_new_one(
    command: tuple[str, ...], ajet: Ajet, home: Path
) -> None:
    ended = ajet(*command, "--planner", "llm", "--model", "m")
    assert (ended.code, "expected --planner-model" in ended.line) == (2, True)
    ended = ajet(*command, "--planner-model", "m")
    assert (ended.code, "add --planner llm" in ended.line) == (2, True)
    assert not home.exists()


def test_a_language_model_that_answers_nonsense(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_endpoint([says("I would rather write a poem.")]) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        ended = ajet("research", TOPIC, "--planner", "llm", "--planner-model", "m", "--no-prefect")
    assert ended.code == 2
    assert ended.line
    assert 1 < len(endpoint.requests) <= 4


def test_resume_in_another_installation_is_one_clear_line_and_changes_nothing(
    tmp_path: Path, home: Path, ajet: Ajet, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "first")
    bench.loop().tick()
    monkeypatch.setenv("AJET_DATABASE_URL", bench.home.database)
    before = bench.events()
    ended = ajet("study", "resume", STUDY, "--no-prefect")
    assert ended.code == 2
    assert f"expected the folder of study {STUDY}" in ended.line
    assert bench.events() == before


def test_a_home_that_cannot_be_made(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_HOME", "/sys/ajet")
    for command in (("research", TOPIC), ("study", "list"), ("up",)):
        ended = ajet(*command)
        assert ended.code == 2
        assert "AJET_HOME" in ended.line


def test_a_tampered_event_log_is_named_and_left_as_it_is(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Synthetic(home / "studies").whole()
    database = home / "studies" / "events.db"
    monkeypatch.setenv("AJET_DATABASE_URL", f"sqlite:///{database}")
    with sqlite3.connect(database) as connection:
        connection.execute("update events set payload = replace(payload, '512', '513') where seq = 9")
    before = database.read_bytes()
    for command in (("study", "show"), ("study", "resume"), ("study", "report", "--build")):
        ended = ajet(*command)
        assert ended.code == 2
        assert "event 9" in ended.line
    assert database.read_bytes() == before


def test_a_database_that_is_none(ajet: Ajet, home: Path) -> None:
    database = Path(Home.locate().prepare().database.removeprefix("sqlite:///"))
    database.write_bytes(b"this is no database at all, but it is long enough to be read as one" * 20)
    before = database.read_bytes()
    ended = ajet("study", "list")
    assert ended.code == 2
    assert ended.line
    assert database.read_bytes() == before


def test_a_study_nobody_knows(ajet: Ajet) -> None:
    assert "there is no study yet" in ajet("study", "show").line
    assert ajet("study", "show").code == 2
    assert ajet("study", "report").code == 2


def test_a_field_no_job_has(ajet: Ajet) -> None:
    ended = ajet("job", "explain", "gruop_size")
    assert ended.code == 2
    assert "group_size" in ended.line


def test_a_job_file_that_is_none(ajet: Ajet, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    assert str(path) in ajet("swarm", "start", "--job", str(path)).line
    path.write_text('{"group_size": 3, "episodes_per_step": 128}')
    ended = ajet("swarm", "start", "--job", str(path))
    assert ended.code == 2
    assert "multiple of group_size" in ended.line


def test_no_swarm_server_runs(ajet: Ajet) -> None:
    for command in ("status", "stop"):
        ended = ajet("swarm", command)
        assert ended.code == 2
        assert "ajet swarm start" in ended.line


def test_wrong_options_are_explained_by_the_command_itself(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC, "--max-runs", "0")
    assert ended.code == 2
    assert "--max-runs" in ended.err
    assert "Traceback" not in ended.err


def test_arguments_that_are_no_text(ajet: Ajet, home: Path) -> None:
    for arguments in ((TOPIC + "\udcff",), (TOPIC, "--planner-model", "\udcff")):
        ended = ajet("research", *arguments)
        assert ended.code == 2
        assert "UTF-8" in ended.line
    assert not home.exists()


def test_a_damaged_planners_turn_is_named_and_left_as_it_is(ajet: Ajet, home: Path) -> None:
    assert ajet("research", TOPIC, "--budget", "20s", "--no-prefect").code == 2
    (study,) = home.glob("studies/*")
    turn = study / "planning" / "propose.json"
    turn.parent.mkdir()
    for damage in ("", "{}", '{"acted": 1, "action": {"action": "propose"}, "secret": "zz"}'):
        turn.write_text(damage)
        ended = ajet("study", "resume", "--no-prefect")
        assert ended.code == 2
        assert str(turn) in ended.line
        assert turn.read_text() == damage


def test_a_disk_that_fails_in_an_unusual_way(ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(study: str) -> None:
        raise OSError(errno.EIO, "Input/output error", "somewhere")

    monkeypatch.setattr("research.cli.study.shown.finding.find_study", lambda log, name: fail("x"))
    ended = ajet("study", "show")
    assert ended.code == 2
    assert "somewhere: Input/output error" in ended.line


def test_a_prefect_address_that_is_none_costs_the_view_only(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "nonsense")
    ended = ajet("up")
    assert ended.code == 2
    assert "PREFECT_API_URL" in ended.line


def test_leaving_at_once_says_how_to_go_on(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(session: Session) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "plan", interrupt)
    ended = ajet("research", TOPIC, "--no-prefect")
    assert ended.code == 130
    assert "ajet study resume" in ended.line


def test_a_kind_of_sandbox_that_there_is_not(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC, "--sandbox", "podman")
    assert ended.code == 2
    assert "docker or process; found 'podman'" in ended.line


def test_containers_without_an_engine_are_refused_before_there_is_a_study(
    ajet: Ajet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    ended = ajet("research", TOPIC, "--sandbox", "docker")
    assert ended.code == 2
    assert "install Docker" in ended.line
    assert json.loads(ajet("study", "list", "--json").out) == []


def test_a_study_says_that_the_server_of_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AJET_SERVER", "http://far:8700")
    refuse_server(None)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "AJET_SERVER is set (http://far:8700), and is not asked" in said
    monkeypatch.delenv("AJET_SERVER")
    refuse_server(None)
    assert capsys.readouterr().err == ""
