"""Homes that an earlier version wrote: listed, shown and folded as they were, reported again, and gone on with."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from simlab.sim_run import Desk, Flight, resume
from simlab.worlds import Planted
from starlette.testclient import TestClient

from research.files import read_json
from research.installation.home import Home
from research.runs.files import (
    AttemptFolder,
    AttemptOutcome,
    AttemptSpec,
    due_versions,
    find_kept_file,
    missing_versions,
    read_progress,
)
from research.ui.access import Access
from research.ui.app import make_app
from research.ui.pages.addresses import PAGES
from research.ui.site import Site
from studies import EventLog, EventType, StudyState, fold
from studies.log.event_log import lock_error
from studies.verdicts.judge import judge_hypothesis
from swarm.rollout.keys import ServerDirectory
from tests.recorded.conftest import FIRST, SECOND, Expected, Unpack, check_says
from tests.recorded.record import KILLED, ROUNDS_KILLED, TOPIC, facts
from tests.research.cli.conftest import Ajet

NAMES = ("finished", "stopped", "simulated")
each_home = pytest.mark.parametrize(
    ("recorded_set", "name"),
    [*((day, name) for day in (FIRST, SECOND) for name in NAMES), (SECOND, "rounds")],
    indirect=["recorded_set"],
)
each_report = pytest.mark.parametrize(
    ("recorded_set", "name", "number"),
    [
        *((day, *which) for day in (FIRST, SECOND) for which in (("finished", 0), ("simulated", 0), ("simulated", 1))),
        (SECOND, "rounds", 1),
    ],
    indirect=["recorded_set"],
)
"""Homes, and which of their studies (newest first) has a report."""
DATA = re.compile(r"\b[0-9a-f]{12,64}\b|[+−-]?\d+\.\d{2,}")
"""What of a report is data and no wording: hashes, ids and measured numbers."""
NO_LONGER_SAID = re.compile(
    r"differences smaller than about \S+ cannot be told from zero|"
    r"Exploratory: not in the lock.*?(?=\n#|<h\d|</section>)",
    re.DOTALL,
)
"""What contradicted what else a report says of its power, which is one number now; numbers that no claim rested on."""
Says = Callable[..., Any]


@pytest.fixture
def says(home: Path, ajet: Ajet) -> Says:
    """Return what a command says as JSON, with the home's path as HOME."""

    def call(*arguments: str) -> Any:
        ended = ajet(*arguments, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out.replace(str(home), "HOME"))

    return call


def states(home: Path) -> dict[str, StudyState]:
    with closing(EventLog(f"sqlite:///{home / 'ajet.db'}")) as log:
        return {study: fold(log.read(study)) for study in log.studies()}


@each_home
def test_studies_are_listed_and_shown_as_they_were_and_predictions_scored(
    home: Path, says: Says, ajet: Ajet, unpack: Unpack, expected: Expected, name: str
) -> None:
    unpack(name, home)
    check_says(says("planner", "calibration"), expected[name]["calibration"])
    check_says(says("study", "list"), expected[name]["list"])
    listed = ajet("study", "list")
    for study, recorded in expected[name]["show"].items():
        check_says(says("study", "show", study), recorded)
        assert study in listed.out
        shown = ajet("study", "show", study)
        assert shown.code == 0
        assert all(run["run"] in shown.out for run in recorded["run_table"])


@each_home
def test_logs_verify_and_fold_to_what_they_did_locks_hold_and_each_verdict_is_computed_as_it_was(
    tmp_path: Path, unpack: Unpack, expected: Expected, name: str
) -> None:
    path = unpack(name, tmp_path)
    found = states(path)
    assert found.keys() == expected[name]["state"].keys()
    for study, state in found.items():
        check_says(json.loads(json.dumps(facts(state))), expected[name]["state"][study], study)
        assert lock_error(state, path / "studies" / study) is None
        for verdict in (*state.interim, *state.verdicts):
            again = judge_hypothesis(state, verdict.hypothesis, look=verdict.look, phase=verdict.phase)
            check_says(again.model_dump(mode="json"), verdict.model_dump(mode="json", exclude={"reason"}), study)
            assert data(verdict.reason.encode()) <= data(again.reason.encode())


@each_home
def test_every_page_of_its_studies_shows(home: Path, unpack: Unpack, name: str) -> None:
    place = Home(unpack(name, home), f"sqlite:///{home / 'ajet.db'}").prepare()
    with closing(EventLog(place.database)) as log:
        site = Site(place, log, Access(place.path / "ui/keys.json"))
        with TestClient(make_app(site, PAGES, ["ui"]), base_url="http://ui") as browser:
            browser.post("/sign-in", data={"key": site.access.owner_key})
            found = ["/", "/runs", "/compare", "/ask"]
            for study in log.studies():
                state = site.state(study)
                site.checked(state, 60.0)
                claims = [f"{each.round}/{claim.id}" for each in state.rounds if each.design is not None
                          for claim in each.design.hypotheses]  # fmt: skip
                found += [f"/s/{study}{part}" for part in ("", "/runs", "/planner", "?verify=1")]
                found += [f"/s/{study}/runs/{run}" for run in state.every_run]
                found += [f"/ask?evidence={study}/{claim}" for claim in claims]
            assert [address for address in found if browser.get(address).status_code != 200] == []


@pytest.mark.slow
@each_home
def test_each_study_verifies_where_it_lies_and_as_an_export(
    home: Path, ajet: Ajet, unpack: Unpack, tmp_path: Path, name: str
) -> None:
    unpack(name, home)
    for study, state in states(home).items():
        head = ("--head", state.head_hash)
        verified = ajet("study", "verify", study, *head)
        assert verified.code == 0, verified.out
        assert ajet("study", "export", study, str(tmp_path / study)).code == 0
        again = ajet("study", "verify", str(tmp_path / study), *head)
        assert (again.code, again.out) == (0, verified.out)


@each_report
@pytest.mark.slow
def test_a_report_is_there_as_it_was_and_is_built_again_with_the_same_data(
    home: Path, says: Says, unpack: Unpack, expected: Expected, name: str, number: int
) -> None:
    """The words of a report may change from version to version; its numbers, hashes and verdicts may not."""
    unpack(name, home)
    study = expected[name]["list"][number]["study"]
    pages = [home / "studies" / study / page for page in ("report.md", "report.html")]
    assert says("study", "report", study) == {"study": study, **expected[name]["list"][number]["report"]}
    before = [page.read_bytes() for page in pages]
    recorded = expected[name]["state"][study]["report"]
    for kind, content in zip(("markdown", "html"), before, strict=True):
        assert hashlib.sha256(content).hexdigest() == recorded[kind]["sha256"]
    built = []
    for _ in range(2):
        for page in pages:
            page.unlink()
        says("study", "report", study, "--build")
        built.append([page.read_bytes() for page in pages])
    assert built[0] == built[1]
    for old, new in zip(before, built[0], strict=True):
        assert data(old) <= data(new), data(old) - data(new)
    for verdict in expected[name]["list"][number]["verdicts"]:
        words = (verdict["verdict"].capitalize(), "Higher:", "Lower:")  # the latter of questions that name no direction
        assert any(word.encode() in built[0][0] for word in words)


def data(page: bytes) -> set[str]:
    """Return what a report says that is no wording; figures and styles apart."""
    text = re.sub(r"<(svg|style)\b.*?</\1>", "", page.decode(), flags=re.DOTALL)
    return set(DATA.findall(NO_LONGER_SAID.sub("", text)))


@pytest.mark.slow
def test_a_stopped_study_goes_on_to_its_verdict(home: Path, says: Says, unpack: Unpack, expected: Expected) -> None:
    """The trainings that were left are simulated."""
    unpack("stopped", home)
    (before,) = states(home).values()
    world = Planted(1, {"group_size": (4, 8)}, {"group_size": 4}, (), episodes=64, steps=3)
    after = _gone_on(Flight(before.id, TOPIC, world, hand=resumes_a_day_later, report=True), home, before)
    (verdict,) = after.verdicts
    assert (verdict.n_control, verdict.n_treatment) == (3, 3)
    assert after.runs.keys() == expected["stopped"]["state"][before.id]["phases"].keys()
    assert says("study", "show", before.id)["runs"] == {"planned": 6, "collected": 6}


def resumes_a_day_later(desk: Desk) -> None:
    if desk.state.status == "stopped":
        desk.clock.advance(86_400)
        desk.write(EventType.STUDY_RESUMED, {"command": ["ajet", "study", "resume"]})


@pytest.mark.slow
@pytest.mark.parametrize("reported", [False, True])
def test_a_study_whose_controller_was_killed_goes_on_to_its_verdict(
    home: Path, unpack: Unpack, ajet: Ajet, reported: bool
) -> None:
    unpack("simulated", home)
    if reported:
        assert ajet("study", "report", "killed", "--build").code == 0
        assert ajet("study", "verify", "killed").code == 0
    before = states(home)["killed"]
    assert before.report is None
    after = _gone_on(KILLED, home, before)
    cut = [run.run_id for run in before.runs.values() if run.active]
    assert cut
    assert all([attempt.status for attempt in after.runs[run].attempts] == ["finished"] for run in cut)
    assert after.verdicts[0].look > 1


@pytest.mark.slow
@pytest.mark.parametrize("recorded_set", [SECOND], indirect=True)
def test_a_study_that_was_killed_in_its_second_round_goes_on_to_its_last(home: Path, unpack: Unpack) -> None:
    unpack("rounds", home)
    before = states(home)[ROUNDS_KILLED.name]
    assert (before.status, before.round) == ("running", 2)
    after = _gone_on(ROUNDS_KILLED, home, before)
    assert after.round == 3
    assert [entry.design_hash for entry in after.rounds[:2]] == [entry.design_hash for entry in before.rounds]


def _gone_on(flight: Flight, path: Path, before: StudyState) -> StudyState:
    """Go on with a study to its end; nothing of what it had may have changed."""
    landed = resume(flight, Home.locate({"AJET_HOME": str(path)}))
    after = landed.state
    assert landed.refused is None
    assert after.status == "concluded"
    assert before.round != after.round or after.design_hash == before.design_hash
    assert all(run.status == "collected" for run in after.runs.values())
    for run in before.every_run.values():
        if run.status == "collected":
            assert after.every_run[run.run_id].measurements == run.measurements
            assert len(after.every_run[run.run_id].attempts) == len(run.attempts)
    assert landed.report is not None
    assert all(run in landed.report for run in after.every_run)
    return after


def test_an_old_study_takes_a_note_and_stays_concluded(
    home: Path, says: Says, unpack: Unpack, expected: Expected
) -> None:
    unpack("finished", home)
    (recorded,) = expected["finished"]["list"]
    says("study", "amend", "--note", "read again by a later version")
    check_says(says("study", "resume", "--no-prefect")["verdicts"], recorded["verdicts"])
    assert says("study", "report", "--build")["study"] == recorded["study"]


first_set = pytest.mark.parametrize("recorded_set", [FIRST], indirect=True)


def attempts(home: Path) -> list[tuple[AttemptFolder, AttemptSpec]]:
    folders = [AttemptFolder(path.parent) for path in home.glob("studies/*/attempts/*/attempt.json")]
    return [(folder, AttemptSpec.model_validate(read_json(folder.spec))) for folder in folders]


@first_set
@pytest.mark.parametrize("name", ["finished", "stopped", "simulated"])
def test_attempts_open_without_evaluations_during_training_and_keep_their_names(
    tmp_path: Path, unpack: Unpack, name: str
) -> None:
    found = attempts(unpack(name, tmp_path))
    assert found
    for folder, spec in found:
        assert spec.spec.run_id == spec.run_id
        assert (spec.evaluate_after, spec.during_sha256, spec.other_environment) == ((), "", None)
        assert due_versions(spec, spec.job.steps) == missing_versions(spec, [], spec.job.steps) == []
        assert find_kept_file(folder) is None
        if folder.outcome.exists():
            assert AttemptOutcome.model_validate(read_json(folder.outcome)).seconds > 0
        if folder.progress.exists():
            assert read_progress(folder) is not None


@first_set
def test_runs_fold_to_attempts_that_kept_no_evaluations(tmp_path: Path, unpack: Unpack) -> None:
    with closing(EventLog(f"sqlite:///{unpack('stopped', tmp_path) / 'ajet.db'}")) as log:
        runs = [run for study in log.studies() for run in fold(log.read(study)).runs.values()]
    assert {attempt.during_sha256 for run in runs for attempt in run.attempts} == {""}


@first_set
@pytest.mark.parametrize("name", ["fake", "local"])
def test_a_servers_job_waits_for_no_evaluation_and_has_the_digest_its_checkpoints_are_named_by(
    tmp_path: Path, unpack: Unpack, name: str
) -> None:
    folder = unpack(name, tmp_path)
    job = ServerDirectory(folder).read_interrupted_job()
    assert (job.evaluate_after, job.evaluation_episodes) == ((), 64)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [job.digest()[:12]]
