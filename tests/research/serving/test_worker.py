"""A real server and `ajet up --work`: a study begun, cancelled, tried again, suspended, left and lost, as by pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from prefect.states import Running

from research.orchestration import deployment as registration
from research.orchestration import prefect_api
from research.orchestration.prefect_api import LEFT, FlowRun, SessionEnd, create_flow_run
from research.orchestration.server import read_process
from research.orchestration.supervision import WORKER
from studies import StudyState
from tests.research.orchestration.shown import CANCELLED, PATIENCE_S, PAUSED, artifacts_of, visit, wait_for
from tests.research.serving.conftest import TOPIC, Pages, stop, trainings

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pages(served: Pages) -> Pages:
    served.serve("--limit", "1")
    return served


def test_a_study_is_one_flow_run_over_every_button_and_every_death(pages: Pages) -> None:
    run = pages.begin(**pages.asked)
    wait_for(lambda: bool(pages.studies()) and bool(trainings(pages.study())))
    study = pages.study().id
    wait_for(lambda: pages.flow_run(run).name.startswith(f"{study}: {TOPIC[:20]}"))
    assert set(pages.flow_run(run).tags) == {"ajet", study}

    pages.press(run, "cancel")
    pages.until(run, "Cancelled")
    assert pages.study().stopped_reason == CANCELLED
    assert not trainings(pages.study())
    pages.press(run, "retry")  # at once: of the last minute's events there is one that says Cancelling
    pages.until_trained(run)

    pages.press(run, "pause")
    wait_for(lambda: pages.study().paused_reason == PAUSED)
    assert pages.ajet("study", "resume", study).returncode == 0
    pages.until(run, "Running")
    kept = {process.pid for process in trainings(pages.study())}

    pages.engine(run).kill()
    pages.until(run, "Crashed")
    pages.until_trained(run)
    assert kept == {process.pid for process in trainings(pages.study())}  # what ran was adopted

    engine, worker = pages.engine(run), pages.process(WORKER)
    assert worker is not None
    worker.kill()
    pages.kill_server()
    wait_for(lambda: pages.process(WORKER) not in (None, worker) and pages.serves())
    assert pages.engine(run) == engine  # they are not what drives it
    assert pages.shown(run) == "Running"

    pages.leave()
    assert (pages.shown(run), str(pages.state(run).message)) == ("AwaitingRetry", LEFT)
    assert pages.study().stopped_reason is None
    pages.serve("--limit", "1")
    pages.until_trained(run)
    assert kept == {process.pid for process in trainings(pages.study())}

    stop(pages, study)
    pages.until(run, "Cancelled")
    assert [each.id for each in pages.runs_of(study)] == [run]


def test_a_study_that_asks_is_suspended_with_its_form_and_leaves_its_place_to_another(pages: Pages) -> None:
    run = pages.begin(**pages.asked, approve="plan")
    pages.until(run, "Suspended")
    first = pages.state(run)
    assert first.state_details.run_input_keyset
    study = pages.study_of(run).id
    other = pages.begin(**pages.asked)
    pages.until_trained(other)
    assert pages.shown(run) == "Suspended"
    stop(pages, pages.study_of(other).id)
    pages.until(other, "Cancelled")

    pages.client.resume_flow_run(run, run_input={})
    wait_for(lambda: pages.shown(run) == "Suspended" and pages.state(run).id != first.id)
    assert pages.study_of(run).open_question is not None  # a form that is sent unread answers nothing
    assert pages.ajet("study", "approve", study).returncode == 0
    pages.until_trained(run)
    pages.press(run, "cancel")
    pages.until(run, "Cancelled")
    assert not trainings(pages.study_of(run))


def test_a_flow_run_whose_controller_is_silent_crashes_and_one_that_beats_does_not(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in pages.client.read_automations_by_name(registration.SILENT):
        pages.client.delete_automation(found.id)
    monkeypatch.setattr(prefect_api, "BEAT_S", 4.0)
    pool = registration.ProcessPool(pages.place, Path.cwd(), 1)
    registration.register(pages.client, pages.home, pool, limits=False)
    studies = [StudyState(id=f"s-{number}", topic="topic") for number in (1, 2)]
    runs = [create_flow_run(pages.client, pages.home, study, Running()).id for study in studies]
    silent, lively = (FlowRun(pages.client, run) for run in runs)
    silent.send_heartbeat()

    def crashed() -> bool:
        lively.send_heartbeat()
        return pages.shown(silent.id) == "Crashed"

    wait_for(crashed)
    assert pages.shown(lively.id) == "Running"
    lively.end(SessionEnd("concluded", "enough"))
    for study in studies:
        shutil.rmtree(pages.home.study(study.id))


def test_a_study_is_begun_in_a_browser_which_says_where_its_report_is_read(pages: Pages, page: Page) -> None:
    deployment = pages.client.read_deployment_by_name(f"ajet-research/research@{pages.place}")
    visit(page, pages.server, f"deployments/deployment/{deployment.id}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    page.get_by_label("Topic").fill("group size 4 vs 8 on arith with 3 training steps")
    page.get_by_label("Budget").fill("1d")
    fill_optional(page, "Episodes", "int", "64")
    fill_optional(page, "Effect", "float", "0.3")
    fill_optional(page, "Rounds", "int", "1")
    with page.expect_response(lambda reply: reply.url.endswith("/create_flow_run")) as made:
        page.get_by_role("button", name="Submit").click()
    run = UUID(made.value.json()["id"])
    page.goto("about:blank")  # a page that draws the run's graph takes a core from its trainings
    wait_for(lambda: pages.shown(run) in ("Completed", "Failed"), 3 * PATIENCE_S)
    assert pages.study().concluded_reason is not None
    page.goto(f"{pages.server.url}/v2/runs/flow-run/{run}")
    page.get_by_text("Completed", exact=True).first.wait_for()
    links = artifacts_of(pages.client, run)[f"{pages.study().id}-links"]["id"]
    page.goto(f"{pages.server.url}/v2/artifacts/artifact/{links}")
    page.get_by_text(f"ajet study report {pages.study().id}").first.wait_for()


def fill_optional(page: Page, name: str, kind: str, value: str) -> None:
    """Fill a field of the form that may be left empty: its kind is chosen first."""
    field = page.get_by_text(f"{name} (Optional)", exact=True).locator("xpath=ancestor::div[3]")
    field.get_by_role("tab", name=kind).click()
    field.get_by_role("spinbutton").fill(value)


def test_a_worker_whose_folder_was_removed_ends_and_starts_nothing_more(pages: Pages) -> None:
    """The last of this module: the worker is gone then."""
    assert pages.worker is not None
    (pages.home.prefect / "supervisor.json").unlink()
    assert pages.worker.wait(PATIENCE_S) == 0
    assert "the worker ends" in (pages.home.path / "up.log").read_text()
    assert read_process(pages.home.prefect / WORKER) is None
