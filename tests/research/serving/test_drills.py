from __future__ import annotations
import time
import pytest
from tests.research.orchestration.shown import CANCELLED, PATIENCE_S, PAUSED, wait_for
from tests.research.serving.conftest import TOPIC, Pages, stop, trainings
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

@pytest.fixture(scope="module")
def pages(served: Pages) -> Pages:
    served.serve()
    return served

def test_drill(pages: Pages) -> None:
    t=time.monotonic()
    def say(x): print(f"{time.monotonic()-t:6.1f}", x, flush=True)
    try:
        first = pages.begin(**pages.asked)
        say("begun")
        pages.until(first, "Running", "Failed", "Crashed"); say(pages.shown(first))
        wait_for(lambda: bool(pages.studies()) or pages.shown(first) != "Running", 100)
        say(pages.flow_run(first).state)
        wait_for(lambda: bool(trainings(pages.study())), 100); say("trains")
        pages.press(first, "cancel")
        pages.until(first, "Cancelled"); say(pages.flow_run(first).state)
        say(pages.study().stopped_reason)
        say(trainings(pages.study()))
    finally:
        import subprocess
        print(subprocess.run("tail -n 30 prefect/worker.log up.log prefect/sittings/*.log", shell=True, cwd=pages.home.path, capture_output=True, text=True).stdout)
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
        for l in pages.client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[first]))): print(l.timestamp, l.level, l.message)
        for s in pages.client.read_flow_run_states(first): print(s.timestamp, s.type, s.name, s.message)
