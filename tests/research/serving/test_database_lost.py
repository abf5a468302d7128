"""A real worker whose server dies and loses its database, beside a study that trains and one that waits."""

from __future__ import annotations

import signal

import pytest

from tests.research.orchestration.shown import CANCELLED, wait_for
from tests.research.serving.conftest import Pages, stop, trainings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pages(served: Pages) -> Pages:
    served.serve("--limit", "1")
    return served


def test_a_study_that_trains_is_shown_again_and_one_that_waits_is_handed_over_again(pages: Pages) -> None:
    pages.begin(**pages.asked)
    wait_for(lambda: bool(pages.studies()) and bool(trainings(pages.study())))
    training = pages.study().id
    kept = {process.pid for process in trainings(pages.study())}
    waiting = pages.detach()  # the worker, which drives another, has no place for it
    (run,) = pages.runs_of(waiting)

    assert pages.worker is not None
    pages.worker.send_signal(signal.SIGSTOP)  # looks after the server, and is to come too late
    pages.kill_server()
    for file in pages.home.prefect.glob("prefect.db*"):
        file.unlink()
    pages.worker.send_signal(signal.SIGCONT)
    wait_for(lambda: pages.serves() and bool(pages.runs_of(training)) and bool(pages.runs_of(waiting)))
    (shown,), (again,) = pages.runs_of(training), pages.runs_of(waiting)
    pages.until(shown.id, "Running")
    assert again.id != run.id
    assert kept <= {process.pid for process in trainings(pages.study(training))}
    assert [one.name for one in pages.client.read_work_pools()] == [pages.place]
    assert len(pages.client.read_deployments()) == 1

    pages.press(shown.id, "cancel")  # which the new flow run can do too
    pages.until(shown.id, "Cancelled")
    assert pages.study(training).stopped_reason == CANCELLED
    pages.until(again.id, "Running")
    wait_for(lambda: bool(trainings(pages.study(waiting))))
    assert [one.id for one in pages.runs_of(waiting)] == [again.id]
    stop(pages, waiting)
