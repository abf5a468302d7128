"""A controller in a process of its own: drives synthetic states through the real flow.

`python -m tests.research.orchestration.flow_process FOLDER MODE`, with Prefect's settings in the environment.
MODE `whole` replays a finished study; `killed` ends by SIGKILL while runs are going; `stopped` ends stopped;
`orphaned` kills the Prefect server while runs are going; `terminated` gets a SIGTERM then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from research.loop import Observer, drive
from research.orchestration.flow import run_as_flow
from research.session import interruptible
from studies import EventType, StudyState, fold
from tests.studies.synthetic import STUDY, TOPIC, Synthetic


@dataclass
class Outcome:
    state: StudyState
    done: bool


@dataclass
class Replay:
    """A loop that reveals one more state per tick."""

    states: list[StudyState]
    strike_at: int | None = None
    strike: Callable[[], object] = lambda: None
    seen: int = field(default=0)

    def tick(self) -> Outcome:
        if self.seen == self.strike_at:
            self.strike()
        state = self.states[min(self.seen, len(self.states) - 1)]
        self.seen += 1
        return Outcome(state, self.seen >= len(self.states))

    def stop(self, reason: str) -> Outcome:
        return Outcome(replace(self.states[self.seen], stopped_reason=reason), True)


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    synthetic = Synthetic(folder / f"synthetic-{mode}")
    synthetic.whole() if mode != "stopped" else unfinished(synthetic)
    events = synthetic.log.read(STUDY)
    launched = next(n for n, event in enumerate(events) if event.type == EventType.ATTEMPT_LAUNCHED)
    states = [fold(events[:n]) for n in range(1, len(events) + 1, 3)] + [fold(events)]
    replay = Replay(states, strike_at=launched // 3 + 2, strike=STRIKES.get(mode, lambda: None))

    def body(observer: Observer) -> StudyState:
        with interruptible() as interrupted:
            return drive(replay, [observer], interrupted, poll_s=0.01)

    state = run_as_flow(STUDY, TOPIC, folder, body, lambda line: print(line, file=sys.stderr))
    print(state.status)


def recorded_pid() -> int:
    return int(json.loads((Path(os.environ["PREFECT_HOME"]) / "server.json").read_text())["pid"])


STRIKES: dict[str, Callable[[], object]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "orphaned": lambda: os.killpg(recorded_pid(), signal.SIGKILL),
}


def unfinished(synthetic: Synthetic) -> None:
    synthetic.create()
    synthetic.lock()
    specs = synthetic.plan()
    synthetic.run(specs[0])
    synthetic.launch(specs[1])
    synthetic.end(specs[1], status="failed", code="server_died", reason="killed")
    synthetic.append(EventType.RUN_INVALIDATED, run_id=specs[1].run_id, code="server_died", reason="killed")
    synthetic.launch(specs[2])
    synthetic.append(EventType.STUDY_STOPPED, reason="stopped by the user")


if __name__ == "__main__":
    main()
