"""An installation of many concluded studies, each with its files, written from one that was flown."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

from research.installation.home import Home
from rig.orchestration.long_study import Pattern, Said, write
from studies import EventLog, EventType, StudyState, judge_hypothesis
from studies.log.fold import WORKED, Folding
from studies.records.design import RunSpec


class ManyStudies:
    """So many studies like one that was flown in `source`; whose verdicts follow from their files too."""

    def __init__(self, folder: Path, pattern: Pattern, source: Path, count: int) -> None:
        self.home = Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()
        self.count = count
        self._pattern = pattern
        self._source = source / "studies" / pattern.flight.name
        with closing(EventLog(self.home.database)) as log:
            for number in range(count):
                write(log, name := f"study-{number:04d}", self._told(log, name))

    def listed(self, *options: str) -> tuple[str, float]:
        """Return what `ajet study list` prints, and the seconds of a core that the whole command takes."""
        command = [sys.executable, "-m", "research", "study", "list", *options]
        began = _seconds_of_children()
        done = subprocess.run(
            command, env={**os.environ, "AJET_HOME": str(self.home.path)}, capture_output=True, text=True, check=True
        )
        return done.stdout, _seconds_of_children() - began

    def _told(self, log: EventLog, name: str) -> Iterator[Said]:
        """Yield the events of one study; its verdicts are judged from the events before them."""
        other = self._renaming(name)
        folding, last = Folding(), None
        for event in self._pattern.events:
            if event.type is EventType.REPORT_BUILT:
                continue
            payload = json.loads(_replaced(json.dumps(event.payload), other))
            if event.type is EventType.VERDICT_COMPUTED:
                payload = _judged(folding.state(), payload)
            last = log.compose(name, event.type, payload, after=last, actor=event.actor)
            folding.add([last])
            yield event.type, payload

    def _renaming(self, name: str) -> dict[str, str]:
        """Return what every name becomes, and write the study's files under their new ones."""
        folder = self.home.study(name)
        folder.mkdir(parents=True)
        (folder / "design.lock").write_bytes((self._source / "design.lock").read_bytes())
        other = {self._pattern.flight.name: name}
        for planned in self._pattern.said(EventType.RUN_PLANNED):
            spec = RunSpec.model_validate({**planned["spec"], "study": name})
            other[planned["run_id"]] = spec.run_id
        for path in sorted(self._source.glob("runs/*/*.json")):
            text = path.read_text()
            new = _replaced(text, other)
            to = folder / _replaced(str(path.relative_to(self._source)), other)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(new)
            other[sha256(text.encode()).hexdigest()] = sha256(new.encode()).hexdigest()
        return other


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _replaced(text: str, other: Mapping[str, str]) -> str:
    for before, after in other.items():
        text = text.replace(before, after)
    return text


def _judged(state: StudyState, payload: Mapping[str, Any]) -> dict[str, Any]:
    verdict = judge_hypothesis(state, payload["hypothesis"], look=payload["look"], phase=payload["phase"])
    return {**verdict.model_dump(mode="json"), **{key: payload[key] for key in (WORKED,) if key in payload}}
