"""What looks at studies and at the installation: people's text, and the same as JSON."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from research.cli.study import steering as watching
from research.installation.home import Home
from studies import Event, EventLog, EventType
from studies.report import build_report
from swarm.job import Job, tunables
from tests.disks import needs_mounts, read_only
from tests.research.cli.conftest import Ajet
from tests.research.fakes import create_study
from tests.studies.raw import append
from tests.studies.synthetic import SOURCE, STUDY, TOPIC, Synthetic, Ticking, coded_design


def in_the_installation() -> Synthetic:
    installation = Home.locate().prepare()
    synthetic = Synthetic(installation.study(STUDY))
    synthetic.log.close()
    synthetic.log = EventLog(installation.database, clock=Ticking())
    return synthetic


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with a synthetic finished study: each test has a copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AJET_HOME", str(tmp_path_factory.mktemp("done")))
        synthetic = in_the_installation()
        report = build_report(synthetic.whole(), synthetic.folder)
        synthetic.append(
            EventType.REPORT_BUILT,
            markdown={"path": report.markdown.name, "sha256": report.markdown_sha256},
            html={"path": report.html.name, "sha256": report.html_sha256},
        )
        synthetic.log.close()
        return Home.locate().path


@pytest.fixture
def finished(home: Path, done: Path) -> Synthetic:
    """A synthetic finished study in the installation's own database."""
    shutil.copytree(done, home)
    return in_the_installation()


def test_the_version(ajet: Ajet) -> None:
    ended = ajet("--version")
    assert ended.code == 0
    assert ended.out.startswith("ajet 0.")


@pytest.mark.parametrize(
    "command",
    [(), ("research",), ("study",), ("study", "list"), ("study", "show"), ("study", "watch"), ("study", "resume"),
     ("study", "stop"), ("study", "report"), ("swarm", "start"), ("swarm", "status"), ("swarm", "stop"),
     ("job", "explain"), ("doctor",), ("up",)],
)  # fmt: skip
def test_every_command_has_help_and_every_leaf_has_an_example(ajet: Ajet, command: tuple[str, ...]) -> None:
    ended = ajet(*command, "--help")
    assert ended.code == 0
    if command not in {(), ("study",)}:
        assert "Example" in ended.out


def test_studies_are_listed_and_shown(ajet: Ajet, finished: Synthetic) -> None:
    assert STUDY in ajet("study", "list").out
    shown = ajet("study", "show").out
    assert "group_size=16" in shown
    assert "report" in shown
    data = json.loads(ajet("study", "show", STUDY[:4], "--json").out)
    assert data["status"] == "concluded"
    assert data["topic"] == TOPIC
    assert data["runs"] == {"planned": 10, "collected": 10}
    assert len(data["run_table"]) == 10
    assert data["verdicts"][0]["n_control"] == 5


LOOKING = [["study", "list"], ["study", "list", "--json"], ["study", "show", STUDY], ["study", "show", STUDY, "--json"],
           ["study", "watch", STUDY], ["study", "report", STUDY], ["study", "resume", STUDY]]  # fmt: skip
WRITING = [["study", "amend", STUDY, "--note", "x"], ["study", "stop", STUDY], ["study", "report", STUDY, "--build"],
           ["research", "group size 4 vs 8"]]  # fmt: skip


def tried_read_only(home: Path, commands: list[list[str]]) -> list[tuple[int, str, str]]:
    done = read_only(home, "-m", "tests.research.commands", json.dumps(commands))
    assert done.returncode == 0, done.stderr
    found: list[tuple[int, str, str]] = json.loads(done.stdout)
    return found


def contents(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


@needs_mounts
@pytest.mark.parametrize("closed", [True, False])
def test_a_home_on_a_read_only_disk_is_shown_as_it_is_and_nothing_else_is_done(
    home: Path, finished: Synthetic, closed: bool
) -> None:
    with closing(EventLog(Home.locate().database)) as writer:  # left open, the newest events are not in the file yet
        create_study(writer, "newest")
        if closed:
            writer.close()
            finished.log.close()
        before = contents(home)
        looked, written = (tried_read_only(home, commands) for commands in (LOOKING, WRITING))
        assert contents(home) == before
    for command, (code, out, said) in zip(LOOKING, looked, strict=True):
        assert (code, said) == (0, ""), command
        assert out
    assert {entry["study"] for entry in json.loads(looked[1][1])} == {STUDY, "newest"}
    assert json.loads(looked[3][1])["status"] == "concluded"
    for command, (code, _, said) in zip(WRITING, written, strict=True):
        assert (code, said.count("\n")) == (2, 1), (command, said)
        assert "read" in said, "it says that it is read-only"


CORRUPTIONS = {
    "edited": "UPDATE events SET payload = '{}' WHERE study = 'torn' AND seq = 1",
    "gone": "DELETE FROM events WHERE study = 'torn' AND seq = 1",
    "a type from elsewhere": "UPDATE events SET type = 'study.dreamt' WHERE study = 'torn' AND seq = 2",
    "no text": "UPDATE events SET payload = 7 WHERE study = 'torn' AND seq = 2",
    "cannot follow": None,
}


@pytest.fixture(params=CORRUPTIONS)
def torn(request: pytest.FixtureRequest, finished: Synthetic) -> str:
    """A study beside the finished one, whose log no command can read, in one of several ways."""
    installation = Home.locate()
    with closing(EventLog(installation.database)) as log:
        create_study(log, "torn")
        append(log, "torn", EventType.STUDY_STOPPED, {"reason": "x"})
        if CORRUPTIONS[request.param] is None:
            create_study(log, "torn")
    if statement := CORRUPTIONS[request.param]:
        with closing(sqlite3.connect(installation.path / "ajet.db")) as database, database:
            database.execute(statement)
    return "torn"


def test_a_study_whose_log_is_corrupt_is_listed_with_the_reason_and_hides_no_other(ajet: Ajet, torn: str) -> None:
    ended = ajet("study", "list")
    assert (ended.code, ended.err) == (0, "")
    assert any(torn in line and "corrupt" in line and "event" in line for line in ended.out.splitlines())
    assert any(STUDY in line and "concluded" in line for line in ended.out.splitlines())
    listed = {entry["study"]: entry for entry in json.loads(ajet("study", "list", "--json").out)}
    assert (listed[torn]["status"], listed[STUDY]["status"]) == ("corrupt", "concluded")
    assert "restore the event log" in listed[torn]["reason"]
    assert listed[torn].keys() == listed[STUDY].keys()


def test_a_study_whose_log_is_corrupt_stops_no_command_but_those_on_itself(ajet: Ajet, torn: str) -> None:
    for command in (("study", "show", STUDY), ("study", "report", STUDY), ("planner", "calibration"),
                    ("study", "plan", "group size 4 vs 8"), ("doctor",)):  # fmt: skip
        ended = ajet(*command)
        assert ended.code != 2, (command, ended.err)
        assert "Traceback" not in ended.err
    shown = ajet("study", "show", torn)
    assert shown.code == 2
    assert torn in shown.line


def test_a_generated_reward_is_named_with_its_hash_and_its_author(ajet: Ajet, home: Path) -> None:
    installation = Home.locate().prepare()
    study = Synthetic(installation.study(STUDY))
    study.log.close()
    study.log = EventLog(installation.database, clock=Ticking())
    study.create()
    study.lock(coded_design())
    shown = " ".join(ajet("study", "show").out.split())
    assert "reward dense written by the planner's model, 2 lines, sha256 " in shown
    assert hashlib.sha256(SOURCE.encode()).hexdigest()[:16] in shown
    assert json.loads(ajet("study", "show", "--json").out)["design"]["code"] == {"dense": SOURCE}


def test_a_finished_study_is_watched_and_resumed_at_once(ajet: Ajet, finished: Synthetic) -> None:
    before = len(finished.log.read(STUDY))
    assert "verdict" in ajet("study", "watch").out or "supported" in ajet("study", "watch").out
    assert ajet("study", "resume").code == 0
    assert len(finished.log.read(STUDY)) == before


def test_whoever_watches_reads_only_what_is_new(ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Home.locate().prepare()
    study = Synthetic(installation.study(STUDY))
    study.log.close()
    study.log = EventLog(installation.database, clock=Ticking())
    study.create()
    read, looks = EventLog.read, list[int]()
    happens = [EventType.STUDY_PAUSED, EventType.STUDY_RESUMED, EventType.STUDY_STOPPED]

    def counted(log: EventLog, name: str, after: Event | None = None) -> list[Event]:
        found = read(log, name, after)
        looks.append(len(found))
        return found

    monkeypatch.setattr(watching.time, "sleep", lambda seconds: study.append(happens.pop(0), reason="enough"))
    monkeypatch.setattr(EventLog, "read", counted)
    assert ajet("study", "watch").code == 0
    assert looks[-2:] == [1, 1]


def test_a_report_is_found_and_built_again(ajet: Ajet, finished: Synthetic) -> None:
    paths = json.loads(ajet("study", "report", "--json").out)
    html = Path(paths["html"])
    first = html.read_bytes()
    html.unlink()
    assert ajet("study", "report", "--build").code == 0
    assert len(html.read_bytes()) == pytest.approx(len(first), rel=0.1)


def test_a_job_is_explained_field_by_field(ajet: Ajet) -> None:
    rows = {row["field"]: row for row in json.loads(ajet("job", "explain", "--json").out)}
    assert set(Job.model_fields) <= set(rows)
    assert [name for name, row in rows.items() if not row["description"]] == []
    assert rows["group_size"]["ladder"] == list(tunables()["group_size"].ladder)
    assert "group_size" in ajet("job", "explain", "group_size").out


def test_doctor_says_what_works(ajet: Ajet) -> None:
    ended = ajet("doctor", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["healthy"] is True
    names = {check["name"] for check in found["checks"]}
    assert {"python", "torch", "prefect", "wandb", "machine", "disk", "database", "docker", "sandbox"} <= names
    assert "language model" in names
    assert all(check["remedy"] for check in found["checks"] if check["level"] != "ok")
    assert "ready" in ajet("doctor").out


def test_doctor_says_whether_copies_go_to_wandb(ajet: Ajet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def shown() -> dict[str, str]:
        (found,) = [check for check in json.loads(ajet("doctor", "--json").out)["checks"] if check["name"] == "w&b"]
        return {"level": found["level"], "found": found["found"]}

    assert shown() == {"level": "optional", "found": "offline: W&B's mode is offline"}
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shown()["found"] == "offline: not logged in to api.wandb.ai"
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.example:8080")
    found = "online: WANDB_API_KEY is set; copies of new studies' logs go to http://wandb.example:8080"
    assert shown() == {"level": "ok", "found": found}


def test_doctor_shows_no_secret(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hush")
    monkeypatch.setenv("WANDB_API_KEY", "w-hush")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://somebody:hush@127.0.0.1:8000/v1?key=hush")
    ended = ajet("doctor")
    assert "http://127.0.0.1:8000" in ended.out
    assert "hush" not in ended.out + ended.err


def test_a_finished_study_that_is_resumed_or_stopped_answers_scripts_in_json(ajet: Ajet, finished: Synthetic) -> None:
    for command in ("resume", "stop"):
        assert json.loads(ajet("study", command, "--json").out)["status"] == "concluded"


@pytest.mark.parametrize("sandbox", [{}, {"kind": "docker", "image": "sha256:0", "engine": "28.0"}])
def test_a_study_killed_before_its_report_gets_it_when_it_is_resumed_engine_or_not(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch, sandbox: dict[str, str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    synthetic = Synthetic(Home.locate().prepare().study(STUDY))
    synthetic.log.close()
    synthetic.log = EventLog(Home.locate().database, clock=Ticking())
    settings = {"budget_s": 900.0, "max_runs": None, "parallel": 2, "approve": "none", "sandbox": sandbox}
    synthetic.create(settings=settings)
    synthetic.lock()
    for spec in synthetic.plan():
        synthetic.run(spec)
    synthetic.judge()
    synthetic.conclude()
    ended = ajet("study", "resume", "--no-prefect", "--json")
    assert ended.code == 0
    assert Path(json.loads(ended.out)["report"]["html"]).exists()


def test_a_report_built_again_is_the_one_in_the_log(ajet: Ajet, finished: Synthetic) -> None:
    recorded = finished.state().report
    assert recorded is not None
    html = Path(json.loads(ajet("study", "report", "--build", "--json").out)["html"])
    assert hashlib.sha256(html.read_bytes()).hexdigest() == recorded["html"]["sha256"]


def test_logged_metrics_are_drawn_on_demand(ajet: Ajet, finished: Synthetic) -> None:
    ended = ajet("study", "report", "--plot", "critic/rewards/mean", "--plot", "critic/success/mean", "--json")
    plots = json.loads(ended.out)["plots"]
    assert set(plots) == {"critic/rewards/mean", "critic/success/mean"}
    assert all(Path(path).exists() for paths in plots.values() for path in paths)


def test_a_metric_that_was_not_logged_is_one_line_that_names_the_known_ones(ajet: Ajet, finished: Synthetic) -> None:
    ended = ajet("study", "report", "--plot", "actor/entrpy")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert "critic/rewards/mean" in ended.err


def test_a_report_that_was_deleted_is_said_to_be_gone(ajet: Ajet, finished: Synthetic) -> None:
    Path(json.loads(ajet("study", "report", "--json").out)["html"]).unlink()
    ended = ajet("study", "report")
    assert ended.code == 2
    assert "--build" in ended.line


def test_a_partial_report_of_an_unfinished_study_is_built_and_named(ajet: Ajet, home: Path) -> None:
    synthetic = Synthetic(Home.locate().prepare().study(STUDY))
    synthetic.log.close()
    synthetic.log = EventLog(Home.locate().database, clock=Ticking())
    synthetic.create()
    synthetic.append(EventType.STUDY_STOPPED, reason="enough")
    assert ajet("study", "report").code == 2
    ended = ajet("study", "report", "--build", "--json")
    assert ended.code == 0
    assert "stopped" in Path(json.loads(ended.out)["markdown"]).read_text()


def test_words_that_look_like_markup_are_shown_as_they_are(ajet: Ajet, home: Path) -> None:
    topic = "does [/b] or [red]group size[/] help?"
    installation = Home.locate().prepare()
    log = EventLog(installation.database, clock=Ticking())
    synthetic = Synthetic(installation.study(STUDY), topic=topic)
    synthetic.log = log
    synthetic.create()
    left = "whether it [/i] helps"
    synthetic.append(
        EventType.PLANNER_ACTED, action="propose", tries=1, tokens={}, rejected=[], note="", not_tested=[left]
    )  # fmt: skip
    shown = ajet("study", "show").out
    assert f"asked  {topic}" in shown
    assert f"not tested  {left}" in shown
    assert ajet("study", "list").code == 0


def test_doctor_takes_an_address_that_is_none(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://[hush")
    ended = ajet("doctor")
    assert ended.code == 0
    assert "OPENAI_BASE_URL is no address" in ended.out
    assert "hush" not in ended.out + ended.err


def test_doctor_says_what_containers_would_need(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    for choice, code in (("process", 0), ("", 0), ("docker", 1), ("podman", 1)):
        monkeypatch.setenv("AJET_SANDBOX", choice)
        ended = ajet("doctor", "--json")
        found = {check["name"]: check for check in json.loads(ended.out)["checks"]}
        assert ended.code == code
        if choice == "podman":
            assert "docker or process" in found["sandbox"]["remedy"]
        else:
            assert "install Docker" in found["docker"]["remedy"]
            assert found["sandbox"]["found"].startswith(choice or "process")
