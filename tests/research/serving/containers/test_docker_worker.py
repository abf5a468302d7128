"""A real engine, a real server and `ajet up --work --pool docker`: a study in containers that are killed and left."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from research.errors import BadPool
from research.serving.containers.contained import ENVIRONMENT
from research.serving.containers.fitting import fitting_pool
from research.serving.containers.pool import PLACE
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
from studies import EventLog
from studies.log.leases import ControllerLeases
from tests.research.orchestration.shown import CANCELLED, PATIENCE_S, wait_for
from tests.research.serving.conftest import Pages, stop, trainings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHORT = "group size 4 vs 8 on arith with 3 training steps"
SECRET = "sk-nobody-may-see-this"


@pytest.fixture(scope="module")
def pages(served: Pages, engine: ContainerEngine, image: Image) -> Pages:
    """A worker of containers of the base that clients of the tests are made on."""
    served.environment["KEY_OF_SOMEBODY"] = SECRET
    del served.environment["AJET_SANDBOX"]  # an engine answers here, but not in the containers
    served.serve("--pool", "docker", "--image", image.base)
    return served


def containers(engine: ContainerEngine, pages: Pages) -> list[str]:
    found = engine.client.containers.list(all=True, filters={"label": f"{PLACE}={pages.place}"}, ignore_removed=True)
    return [str(each.id) for each in found]


def test_a_study_goes_on_in_another_container_when_its_own_is_killed_and_ends_in_a_report(
    pages: Pages, engine: ContainerEngine
) -> None:
    short = ("--budget", "30m", "--effect", "0.3", "--episodes", "64", "--max-runs", "6", "--detach")
    assert pages.ajet("research", SHORT, *short).returncode == 0
    study = pages.study().id
    assert pages.study().settings["sandbox"]["kind"] == "process"
    wait_for(lambda: bool(trainings(pages.study())))
    wait_for(lambda: len(containers(engine, pages)) == 1)
    (first,) = containers(engine, pages)
    lease = ControllerLeases(EventLog(pages.home.database)).read(study)
    assert lease is not None
    cgroup = Path(f"/proc/{lease.holder.pid}/cgroup").read_text()  # by its id on this machine
    assert first in cgroup, "its controller is in the container"
    pool = pages.client.read_work_pool(f"{pages.place}-docker")
    assert SECRET in (pages.home.prefect / ENVIRONMENT).read_text()
    assert SECRET not in json.dumps(engine.client.api.inspect_container(first))
    assert SECRET not in json.dumps(pool.base_job_template)

    engine.client.api.kill(first)
    wait_for(lambda: not trainings(pages.study()))
    wait_for(lambda: len(pages.runs_of(study)) == 2)
    earlier, later = (run.id for run in pages.runs_of(study))
    pages.until(earlier, "Crashed")
    wait_for(lambda: pages.shown(later) in ("Completed", "Failed"), 3 * PATIENCE_S)
    assert pages.study().concluded_reason is not None
    assert (pages.home.study(study) / "report.html").exists()
    assert "lost" in {attempt.status for run in pages.study().runs.values() for attempt in run.attempts}
    assert "concluded:" in (pages.home.prefect / "sittings" / f"{later}.log").read_text()
    wait_for(lambda: not containers(engine, pages))


def test_a_study_is_cancelled_left_and_taken_up_by_a_worker_of_processes(pages: Pages, engine: ContainerEngine) -> None:
    study = pages.detach()
    first = pages.runs_of(study)[0].id
    wait_for(lambda: bool(trainings(pages.study())))
    pages.press(first, "cancel")
    pages.until(first, "Cancelled")
    assert pages.study().stopped_reason == CANCELLED
    wait_for(lambda: not containers(engine, pages))

    second = pages.begin("ajet-resume", study=study)
    wait_for(lambda: bool(trainings(pages.study())))
    pages.leave()
    assert not containers(engine, pages)
    assert not (pages.home.prefect / ENVIRONMENT).exists()
    assert "with their container" in str(pages.flow_run(second).state)
    assert pages.study().stopped_reason is None

    pages.serve()
    wait_for(lambda: len(pages.runs_of(study)) == 3)
    third = pages.runs_of(study)[-1]
    assert third.work_pool_name == pages.place
    pages.until(third.id, "Running")
    wait_for(lambda: bool(trainings(pages.study())))
    assert "lost" not in {attempt.status for run in pages.study().runs.values() for attempt in run.attempts}
    stop(pages, study)
    pages.until(third.id, "Cancelled")


def test_an_image_that_cannot_run_this_python_is_refused_in_one_line(pages: Pages, engine: ContainerEngine) -> None:
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("nothing"))
    name = "ajet-test-nothing:latest"
    engine.client.api.import_image_from_data(empty.getvalue(), repository="ajet-test-nothing", tag="latest")
    with pytest.raises(BadPool, match=name) as refused:
        fitting_pool(engine, pages.place, pages.home, Path.cwd(), name, pages.server.api, print)
    engine.client.images.remove(name)
    assert not (pages.home.prefect / ENVIRONMENT).exists()
    assert "\n" not in str(refused.value)
    assert "--image NAME" in str(refused.value)
    assert not containers(engine, pages)
