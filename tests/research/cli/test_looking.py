"""What looks at studies and at the installation: people's text, and the same as JSON; and lines that docs show."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sqlite3
from contextlib import closing
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from research.cli import app
from research.cli.catalogs import explanations
from research.installation.home import Home
from studies import EventLog, EventType
from swarm.job import Job, tunables
from swarm.verl_config import VerlFields
from tests.disks import needs_mounts, read_only
from tests.research.cli.conftest import Ajet, every_command
from tests.research.factories import make_study
from tests.research.fakes import create_study
from tests.studies.synthetic import SOURCE, STUDY, Synthetic, append, coded_design


def test_every_command_has_help_and_every_leaf_has_an_example(ajet: Ajet) -> None:
    commands = every_command()
    assert "ajet study resume" in commands
    for path, command in commands.items():
        assert command.help, path
        assert hasattr(command, "list_commands") or "Example" in command.help, path
    for words in (("--help",), ("study", "--help"), ("study", "resume", "--help")):
        assert ajet(*words).code == 0
    assert ajet("--version").out.startswith("ajet 0.")


LOOKING = [["list"], ["list", "--json"], ["show", STUDY], ["show", STUDY, "--json"], ["watch", STUDY],
           ["report", STUDY], ["resume", STUDY], ["verify", STUDY]]  # fmt: skip
WRITING = [["study", "amend", STUDY, "--note", "x"], ["study", "stop", STUDY], ["study", "report", STUDY, "--build"],
           ["research", "group size 4 vs 8"]]  # fmt: skip


@pytest.mark.slow
@needs_mounts
@pytest.mark.parametrize("closed", [True, False])
def test_a_home_on_a_read_only_disk_is_shown_as_it_is(home: Path, finished: Synthetic, closed: bool) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}

    commands = [*(["study", *words] for words in LOOKING), *WRITING]
    with closing(EventLog(Home.locate().database)) as writer:  # left open, the newest events are not in the file yet
        create_study(writer, "newest")
        if closed:
            writer.close()
            finished.log.close()
        before = contents()
        done = read_only(home, "-m", "tests.research.commands", json.dumps(commands))
        assert (done.returncode, contents() == before) == (0, True), done.stderr
    found: list[tuple[int, str, str]] = json.loads(done.stdout)
    for command, (code, out, said) in zip(commands, found, strict=True):
        if command in WRITING:
            assert (code, said.count("\n"), "read" in said) == (2, 1, True), (command, said)
        else:
            assert (code, said, bool(out)) == (0, "", True), command
    assert {entry["study"] for entry in json.loads(found[1][1])} == {STUDY, "newest"}
    assert json.loads(found[3][1])["status"] == "concluded"


CORRUPTIONS = {
    "edited": "UPDATE events SET payload = '{}' WHERE study = 'torn' AND seq = 1",
    "gone": "DELETE FROM events WHERE study = 'torn' AND seq = 1",
    "a type from elsewhere": "UPDATE events SET type = 'study.dreamt' WHERE study = 'torn' AND seq = 2",
    "no text": "UPDATE events SET payload = 7 WHERE study = 'torn' AND seq = 2",
    "cannot follow": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CORRUPTIONS)
def test_a_corrupt_study_is_listed_and_stops_no_command_on_others(ajet: Ajet, finished: Synthetic, how: str) -> None:
    installation = Home.locate()
    with closing(EventLog(installation.database)) as log:
        create_study(log, "torn")
        append(log, "torn", EventType.STUDY_STOPPED, {"reason": "x"})
        if CORRUPTIONS[how] is None:
            create_study(log, "torn")
    if statement := CORRUPTIONS[how]:
        with closing(sqlite3.connect(installation.path / "ajet.db")) as database, database:
            database.execute(statement)
    ended = ajet("study", "list")
    assert (ended.code, ended.err) == (0, "")
    for words in (("torn", "corrupt", "event"), (STUDY, "concluded")):
        assert any(all(word in line for word in words) for line in ended.out.splitlines())
    listed = {entry["study"]: entry for entry in ajet("study", "list", "--json").data}
    assert (listed["torn"]["status"], listed[STUDY]["status"]) == ("corrupt", "concluded")
    assert "restore the event" in listed["torn"]["reason"]
    assert listed["torn"].keys() == listed[STUDY].keys()
    for command in (("study", "show", STUDY), ("study", "report", STUDY), ("planner", "calibration"),
                    ("study", "plan", "group size 4 vs 8"), ("doctor",)):  # fmt: skip
        ended = ajet(*command)
        assert (ended.code != 2, "Traceback" in ended.err) == (True, False), (command, ended.err)
    ajet("study", "show", "torn").refused("torn")


def test_a_narrow_terminal_takes_nothing_from_a_list(
    ajet: Ajet, study: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = "".join(ajet("study", "list").out.split())
    monkeypatch.setattr(app, "_WIDE", 40)
    app.console.cache_clear()
    narrow = "".join(ajet("study", "list").out.split())
    app.console.cache_clear()
    assert ("…" in narrow, sorted(narrow)) == (False, sorted(whole))


def test_code_is_named_with_its_hash_and_its_language(ajet: Ajet, study: Synthetic) -> None:
    study.lock(coded_design())
    shown = " ".join(ajet("study", "show").out.split())
    sha = hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    assert ("code dense" in shown, f"2 lines, sha256 {sha}; Python" in shown) == (True, True)
    assert ajet("study", "show", "--json").data["design"]["code"] == {"dense": SOURCE}


def test_a_finished_study_is_watched_resumed_and_stopped_at_once(ajet: Ajet, finished: Synthetic) -> None:
    before = finished.state().event_count
    assert "supported" in ajet("study", "watch").out
    assert ajet("study", "resume").code == 0
    for command in ("resume", "stop"):
        assert ajet("study", command, "--json").data["status"] == "concluded"
    assert finished.state().event_count == before
    assert ajet("study", "amend", STUDY, "--note", "looked at").code == 0
    assert "supported" in ajet("study", "watch").out  # a note after the end begins nothing


def test_a_report_that_was_deleted_is_built_again_as_it_was(ajet: Ajet, finished: Synthetic) -> None:
    recorded = finished.state().report
    assert recorded is not None
    html = Path(ajet("study", "report", "--json").data["html"])
    html.unlink()
    ajet("study", "report").refused("--build")
    assert ajet("study", "report", "--build", "--json").data["html"] == str(html)
    assert hashlib.sha256(html.read_bytes()).hexdigest() == recorded["html"]["sha256"]


def test_a_note_after_the_end_leaves_the_report_where_it_is_until_it_is_built_with_the_note(
    ajet: Ajet, finished: Synthetic
) -> None:
    before = ajet("study", "report", "--json").data
    assert ajet("study", "amend", STUDY, "--note", "The disk was slow.").code == 0
    assert ajet("study", "report", "--json").data == before
    assert ajet("study", "list", "--json").data[0]["report"] == ajet("study", "show", "--json").data["report"]
    assert f"report  {before['html']}\n" in ajet("study", "show").out
    assert ajet("study", "verify").code == 0
    page = Path(before["markdown"])
    assert "The disk was slow." not in page.read_text()
    for _ in range(2):  # the second time it is as it was
        assert ajet("study", "report", "--build").code == 0
        assert "The disk was slow." in page.read_text()
        events = finished.log.read(STUDY)
        assert [event.type for event in events[-3:]] == [
            EventType.REPORT_BUILT, EventType.DESIGN_AMENDED, EventType.REPORT_BUILT,
        ]  # fmt: skip
    assert ajet("study", "verify").code == 0


@pytest.mark.parametrize("sandbox", [{}, {"kind": "docker", "image": "sha256:0", "engine": "28.0"}])
def test_a_resumed_study_gets_its_report(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch, sandbox: dict[str, str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    settings = {"budget_s": 900.0, "max_runs": None, "parallel": 2, "approve": "none", "sandbox": sandbox}
    make_study().whole(settings=settings)
    assert Path(ajet("study", "resume", "--no-prefect", "--json").data["report"]["html"]).exists()


def test_a_planners_cap_is_raised_where_a_study_goes_on_and_the_log_has_it(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    settings = {"budget_s": 900.0, "max_runs": None, "parallel": 2, "approve": "none", "sandbox": {}}
    capped = settings | {"planner_options": {"planner_max_tokens": 1000, "planner_timeout": 9.0}}
    made = make_study()
    made.whole(settings=capped, planner={"name": "llm", "model": "m"})
    resume = ("study", "resume", "--no-prefect", "--planner-max-tokens")
    ajet(*resume, "1000").refused("--planner-max-tokens", "1,000")
    ajet("study", "resume", "--detach", "--planner-max-cost", "2").refused("--detach")
    assert ajet(*resume, "5000", "--json").code == 0
    state = made.state()
    assert state.settings["planner_options"] == {"planner_max_tokens": 5000, "planner_timeout": 9.0}
    (event,) = [event for event in made.log.read(STUDY) if event.type is EventType.STUDY_RESUMED]
    assert event.payload["planner_options"] == {"planner_max_tokens": 5000}


def test_a_partial_report_of_an_unfinished_study_is_built_and_named(ajet: Ajet, study: Synthetic) -> None:
    study.append(EventType.STUDY_STOPPED, reason="enough")
    ajet("study", "report").refused()
    assert "stopped" in Path(ajet("study", "report", "--build", "--json").data["markdown"]).read_text()


def test_every_field_of_a_job_is_explained_once_and_alone_or_with_those_in_it(ajet: Ajet) -> None:
    rows = ajet("job", "explain", "--json").data
    assert [row["field"] for row in rows] == list(dict.fromkeys(row["field"] for row in explanations()))
    assert [row["field"] for row in rows if not row["description"]] == []
    known = {row["field"]: row for row in rows}
    assert set(Job.model_fields) <= set(known)
    assert known["group_size"]["ladder"] == list(tunables()["group_size"].ladder)
    assert "group_size" in ajet("job", "explain", "group_size").out
    (alone,) = ajet("job", "explain", "group_size", "--json").data
    assert alone["field"] == "group_size"
    own = {"verl", *(f"verl.{name}" for name in VerlFields.model_fields)}
    told = ajet("job", "explain", "verl", "--json").data
    assert {row["field"] for row in told} == own


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://somebody:hush@127.0.0.1:8000/v1?key=hush", "http://127.0.0.1:8000"),
        ("http://[hush", "OPENAI_BASE_URL is no address"),
    ],
)
def test_doctor_shows_no_secret(ajet: Ajet, monkeypatch: pytest.MonkeyPatch, address: str, shown: str) -> None:
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "sk-hush")
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    ended = ajet("doctor")
    assert (ended.code, shown in ended.out, "hush" in ended.out + ended.err) == (0, True, False)


@pytest.mark.parametrize(("choice", "code"), [("process", 0), ("", 0), ("docker", 1), ("podman", 1)])
def test_doctor_says_what_containers_would_need(
    ajet: Ajet, monkeypatch: pytest.MonkeyPatch, choice: str, code: int
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    monkeypatch.setenv("AJET_SANDBOX", choice)
    ended = ajet("doctor", "--json")
    told = json.loads(ended.out)
    found = {check["name"]: check for check in told["checks"]}
    assert (ended.code, told["healthy"]) == (code, code == 0)
    if choice == "podman":
        assert "docker or process" in found["sandbox"]["remedy"]
    else:
        assert "install Docker" in found["docker"]["remedy"]
        assert found["sandbox"]["found"].startswith(choice or "process")


def test_doctor_says_which_extra_is_missing(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr("research.cli.system.version", version)
    ended = ajet("doctor")
    assert (ended.code, "pip install 'ajet[local]'" in ended.out, "not ready" in ended.out) == (1, True, True)


DOCS = Path(__file__).parents[3] / "docs"
TYPED = (
    "ajet env init", "ajet env check", "ajet env list", "ajet model list", "ajet study plan", "ajet study list",
    "ajet study verify", "ajet study export", "ajet findings", "ajet planner calibration",
    "ajet job explain", "ajet doctor", "ajet sandbox ls", "ajet swarm list",
)  # fmt: skip
PAGES = ("environments", "models", "research", "findings", "operations")


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine takes 200
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_can_be_typed(
    ajet: Ajet, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```bash\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    typed = [line for block in blocks for line in block.splitlines() if line.startswith(TYPED) and "--tiny" not in line]
    assert typed
    own = {"ID": STUDY, "FOLDER": "exported"}
    for line in typed:
        ended = ajet(*(own.get(word, word) for word in shlex.split(line, comments=True)[1:]))
        assert (line, ended.code, ended.err if ended.code else "") == (line, 0, "")
