"""A real server and `ajet up --work`: studies begun, cancelled, paused, resumed, scheduled and lost, as by pages."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from playwright.sync_api import Page, sync_playwright

from research.orchestration.reconcile import SessionEnd
from research.orchestration.server import recorded
from research.serving.supervision import WORKER
from tests.research.serving.conftest import PATIENCE_S, TOPIC, Pages, stop, trainings, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def pages(served: Pages) -> Pages:
    served.serve()
    return served


def test_a_study_lives_in_the_pages_from_its_beginning_over_every_button_and_every_death(pages: Pages) -> None:
    first = pages.begin("ajet-research", **pages.asked)
    pages.until(first, "Running")
    wait_for(lambda: pages.study().topic == TOPIC and bool(trainings(pages.study())))
    study = pages.study().id
    run = pages.flow_run(first)
    assert run.name.startswith(f"{study}: {TOPIC[:20]}")
    assert set(run.tags) == {"ajet", study}

    pages.press(first, "cancel")
    pages.until(first, "Cancelled")
    assert pages.study().stopped_reason == "cancelled in the Prefect UI"
    assert not trainings(pages.study())

    second = pages.begin("ajet-resume", study=study)
    pages.until(second, "Running")
    wait_for(lambda: bool(trainings(pages.study())))
    pages.press(second, "pause")
    wait_for(lambda: pages.study().paused_reason == "paused in the Prefect UI")
    assert pages.ajet("study", "resume", study).returncode == 0
    pages.until(second, "Running")

    kept = {process.pid for process in trainings(pages.study())}
    (sitting,) = pages.sittings()
    sitting.send_signal(signal.SIGKILL)
    pages.until(second, "Crashed")
    wait_for(lambda: len(pages.runs_of(study)) == 3)
    third = pages.runs_of(study)[-1].id
    pages.until(third, "Running")
    assert kept <= {process.pid for process in trainings(pages.study())}, "what ran was adopted"

    pages.leave()
    pages.until(third, "Crashed")
    assert "left with the worker" in str(pages.flow_run(third).state)
    assert pages.study().stopped_reason is None
    assert kept <= {process.pid for process in trainings(pages.study())}
    pages.serve()
    wait_for(lambda: len(pages.runs_of(study)) == 4)
    fourth = pages.runs_of(study)[-1].id
    pages.until(fourth, "Running")

    stop(pages, study)
    pages.until(fourth, "Cancelled")
    assert len(pages.runs_of(study)) == 4


def test_a_supervisor_that_was_killed_costs_no_controller(pages: Pages) -> None:
    run = pages.begin("ajet-research", **pages.asked)
    pages.until(run, "Running")
    study, (sitting,) = pages.study().id, pages.sittings()
    assert pages.worker is not None
    pages.worker.kill()
    pages.worker.wait()
    left = pages.prefect_worker
    pages.serve()
    wait_for(lambda: not left.is_running())
    assert sitting.is_running()
    assert pages.shown(run) == "Running"
    stop(pages, study)
    pages.until(run, "Cancelled")
    assert len(pages.runs_of(study)) == 1


def test_a_form_that_is_wrong_is_refused_before_or_after_it_is_sent(pages: Pages) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    with pytest.raises(PrefectHTTPStatusError, match="budget"):
        pages.begin("ajet-research", topic=TOPIC, budget="soon")
    with pytest.raises(PrefectHTTPStatusError, match="looks"):
        pages.begin("ajet-research", topic=TOPIC, looks=50)
    with pytest.raises(PrefectHTTPStatusError, match="colour"):
        pages.begin("ajet-research", topic=TOPIC, colour="red")
    run = pages.begin("ajet-research", topic="does kindness help")
    pages.until(run, "Failed")
    assert "expected a topic that names something to vary; found 'does kindness help'" in str(pages.flow_run(run).state)
    unknown = pages.begin("ajet-resume", study="nobody-s")
    pages.until(unknown, "Failed")
    said = str(pages.flow_run(unknown).state)
    assert "found none; `ajet study list`" in said or "there is no study yet" in said


def test_a_study_is_handed_over_from_a_terminal_and_only_to_a_worker(pages: Pages) -> None:
    study = pages.detach()
    assert f"study {study} is the worker's now: {pages.server.url}/runs/flow-run/" in pages.handed
    wait_for(lambda: bool(trainings(pages.study())))
    stop(pages, study)
    (run,) = pages.runs_of(study)
    pages.until(run.id, "Cancelled")
    again = pages.ajet("study", "resume", study, "--detach")
    assert again.returncode == 0, again.stderr
    wait_for(lambda: len(pages.runs_of(study)) == 2)
    pages.until(pages.runs_of(study)[-1].id, "Running")
    stop(pages, study)
    pages.until(pages.runs_of(study)[-1].id, "Cancelled")


def test_a_schedule_begins_studies_and_telling_the_server_again_keeps_it(pages: Pages) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
    from prefect.client.schemas.schedules import IntervalSchedule

    from research.serving.pools import ProcessPool
    from research.serving.registration import register

    deployment = pages.client.read_deployment_by_name(f"ajet-resume/{pages.place}")
    nightly = DeploymentScheduleCreate(
        schedule=IntervalSchedule(interval=timedelta(days=1)), active=True, parameters={"study": "of-the-night"}
    )
    (schedule,) = pages.client.create_deployment_schedules(deployment.id, [nightly])
    register(pages.client, pages.home, ProcessPool(pages.place, Path.cwd()))
    assert [each.id for each in pages.client.read_deployment_schedules(deployment.id)] == [schedule.id]
    of_it = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))

    def is_planned() -> bool:
        runs = pages.client.read_flow_runs(flow_run_filter=of_it)
        return any(run.auto_scheduled and run.parameters == {"study": "of-the-night"} for run in runs)

    wait_for(is_planned)
    pages.client.delete_deployment_schedule(deployment.id, schedule.id)


def test_a_server_that_was_killed_is_started_again_where_it_was(pages: Pages) -> None:
    def pid() -> int:
        known = recorded(pages.home.prefect / "server.json")
        return 0 if known is None else int(str(known["pid"]))

    before = pid()
    psutil.Process(before).kill()
    wait_for(lambda: pid() not in (0, before))
    wait_for(lambda: pages.ajet("up", "--json").returncode == 0)
    assert pages.server.url in pages.ajet("up", "--json").stdout
    run = pages.begin("ajet-resume", study="nobody-s")
    pages.until(run, "Failed")


def test_a_flow_run_whose_controller_is_silent_crashes_and_one_that_beats_does_not(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    from research.orchestration.flow_run import FlowRun
    from research.serving import registration
    from research.serving.pools import ProcessPool

    for found in pages.client.read_automations_by_name(registration.SILENT):
        pages.client.delete_automation(found.id)
    monkeypatch.setattr(registration, "BEAT_S", 4.0)
    registration.register(pages.client, pages.home, ProcessPool(pages.place, Path.cwd()))
    silent, lively = (FlowRun.begin(pages.client, pages.home, f"s-{n}", "topic", f"key-{n}") for n in (1, 2))
    silent.beat()

    def crashed() -> bool:
        lively.beat()
        return pages.shown(silent.id) == "Crashed"

    wait_for(crashed)
    assert pages.shown(lively.id) == "Running"
    lively.end(SessionEnd("concluded", "enough"))


@contextmanager
def listening(heard: Path) -> Iterator[str]:
    """Write to a file what is posted to an address of this machine, which is given."""

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.write_bytes(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def notifying(pages: Pages, url: str) -> UUID:
    """Make what a user makes in the pages: a webhook, and an automation that calls it where a study's run fails."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: pages.server.api}):
        hook = CustomWebhookNotificationBlock(
            name="hook", url=url, json_data={"text": "{{body}}"}, headers=None, cookies=None
        )
        block = UUID(str(hook.save("hook", overwrite=True)))
    action = SendNotification(block_document_id=block, subject="study", body="{{ flow_run.id }} failed")
    return pages.client.create_automation(
        AutomationCore(
            name="tell me", description="", actions=[action],
            trigger=EventTrigger(
                expect={"prefect.flow-run.Failed"}, posture=Posture.Reactive, threshold=1, within=timedelta(0),
                match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
                match_related=ResourceSpecification(
                    {"prefect.resource.role": ["tag"], "prefect.resource.id": ["prefect.tag.ajet"]}
                ),
            ),
        )
    )  # fmt: skip


@pytest.fixture
def page() -> Iterator[Page]:
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--disable-quic"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        yield page
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (.ci/run installs it)")
def test_a_study_is_begun_in_a_browser_and_its_report_is_read_there(pages: Pages, page: Page) -> None:
    """The form of a deployment is filled and submitted, the flow run looked at, the report read."""
    deployment = pages.client.read_deployment_by_name(f"ajet-research/{pages.place}")
    page.goto(f"{pages.server.url}/v2/deployments/deployment/{deployment.id}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    page.get_by_label("Topic").fill("group size 4 vs 8 on arith with 3 training steps")
    page.get_by_label("Budget").fill("1d")
    page.get_by_label("Episodes").fill("64")
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
    query = {"artifacts": {"flow_run_id": {"any_": [str(run)]}}}
    found = pages.client.request("POST", "/artifacts/filter", json=query).json()
    (report,) = [artifact["id"] for artifact in found if artifact["key"].endswith("-report")]
    page.goto(f"{pages.server.url}/v2/artifacts/artifact/{report}")
    page.get_by_text("Asked:").first.wait_for()


def fill_optional(page: Page, name: str, kind: str, value: str) -> None:
    """Fill a field of the form that may be left empty: its kind is chosen first."""
    field = page.get_by_text(f"{name} (Optional)", exact=True).locator("xpath=ancestor::div[3]")
    field.get_by_role("tab", name=kind).click()
    field.get_by_role("spinbutton").fill(value)


def test_a_notification_of_somebodys_own_is_sent_when_a_study_fails(pages: Pages) -> None:
    """An automation made in the pages works on the server that we start: triggers and actions are on."""
    heard = pages.home.path / "heard"
    with listening(heard) as url:
        automation = notifying(pages, url)
        run = pages.begin("ajet-resume", study="nobody-s")
        pages.until(run, "Failed")
        wait_for(heard.exists)
        pages.client.delete_automation(automation)
    assert str(run) in heard.read_text()


def test_a_worker_whose_folder_was_removed_ends_and_starts_nothing_more(pages: Pages) -> None:
    """The last of this module: the worker is gone then."""
    assert pages.worker is not None
    (pages.home.prefect / "supervisor.json").unlink()
    assert pages.worker.wait(PATIENCE_S) == 0
    assert "is gone, or another's; the worker ends" in (pages.home.path / "up.log").read_text()
    assert recorded(pages.home.prefect / WORKER) is None
