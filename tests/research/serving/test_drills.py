from __future__ import annotations
import time
import pytest

from prefect.client.schemas.objects import State, StateType
from tests.research.orchestration.shown import CANCELLED, PATIENCE_S, PAUSED, wait_for
from tests.research.serving.conftest import TOPIC, Pages, stop, trainings
from research.orchestration.supervision import WORKER
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

@pytest.fixture(scope="module")
def pages(served: Pages) -> Pages:
    served.serve()
    return served
def retry(pages, run):
    pages.client.set_flow_run_state(run, State(type=StateType.SCHEDULED, name="AwaitingRetry", message="Retry from the UI"), force=True)

def test_drill(pages: Pages) -> None:
    t=time.monotonic()
    def say(*x): print(f"{time.monotonic()-t:6.1f}", *x, flush=True)
    try:
        run = pages.begin(**pages.asked)
        wait_for(lambda: bool(pages.studies()) and bool(trainings(pages.study())), 100); say("trains")
        pages.press(run, "cancel")
        pages.until(run, "Cancelled"); say(pages.flow_run(run).state)
        retry(pages, run); say("retried")
        wait_for(lambda: pages.study().stopped_reason is None and bool(trainings(pages.study())), 100); say("goes on", pages.shown(run))
        study = pages.study().id
        pages.press(run, "pause")
        wait_for(lambda: pages.study().paused_reason == PAUSED, 60); say(pages.flow_run(run).state)
        assert pages.ajet("study", "resume", study).returncode == 0
        pages.until(run, "Running"); say("running after terminal's resume")
        kept = {p.pid for p in trainings(pages.study())}
        say("kill engine"); pages.engine(run).kill()
        pages.until(run, "Crashed"); say("Crashed", pages.flow_run(run).state.message)
        pages.until(run, "Running"); say("Running")
        wait_for(lambda: pages.engine(run) is not None)
        say(kept, {p.pid for p in trainings(pages.study())})
        w = pages.process(WORKER); e = pages.engine(run)
        w.kill(); say("worker killed")
        wait_for(lambda: pages.process(WORKER) not in (None, w), 60); say("new worker")
        assert pages.engine(run) == e and pages.shown(run) == "Running"
        pages.leave(); say("left", pages.flow_run(run).state, pages.engine(run))
        say([ (s.name, s.message) for s in pages.client.read_flow_run_states(run)][-3:])
        pages.serve(); say("served")
        pages.until(run, "Running"); say("Running")
        wait_for(lambda: pages.engine(run) is not None); say("engine")
        say(kept, {p.pid for p in trainings(pages.study())})
        stop(pages, study); say("stopped in terminal")
        pages.until(run, "Cancelled"); say(pages.flow_run(run).state)
        assert len(pages.runs_of(study)) == 1
    finally:
        import subprocess
        print(subprocess.run("tail -n 30 prefect/worker.log up.log prefect/sittings/*.log", shell=True, cwd=pages.home.path, capture_output=True, text=True).stdout)
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
        for l in pages.client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))): print(l.timestamp, l.level, l.message)
        for s in pages.client.read_flow_run_states(run): print(s.timestamp, s.type, s.name, s.message)
