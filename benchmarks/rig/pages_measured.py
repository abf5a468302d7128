"""Homes with studies to look at, their pages served as `ajet ui` serves them, and browsers that look."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import uvicorn

from research.cli.ui import bind
from research.files import write_json
from research.installation.home import Home
from research.runs.files import AttemptFolder, AttemptSpec, read_progress
from research.ui.access import Access
from research.ui.app import PageServer, make_app
from research.ui.episodes import EpisodePlace, EpisodeReaders, SeenEpisode
from research.ui.pages.addresses import PAGES
from research.ui.site import Site
from rig.studies_at_scale import Pattern, Said, insert, write
from studies import EventLog, EventType, StudyState, fold, judge_hypothesis
from studies.log.event_log import LOCK_FILE
from studies.proof.export import read_export
from studies.records.runs import confirm_spec
from swarm.job import Job, TinyModel
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run")


def make_home(folder: Path) -> Home:
    """Return a new home in a folder."""
    return Home(folder, f"sqlite:///{folder / 'ajet.db'}").prepare()


class SizedStudy:
    """A study of two arms that ended, with so many runs, each with its files, written as a controller writes it."""

    def __init__(self, home: Home, pattern: Pattern, source: Path, runs: int) -> None:
        self.name, self.folder = f"of-{runs}-runs", home.study(f"of-{runs}-runs")
        self._pattern, self._source, self._runs = pattern, source / "studies" / pattern.flight.name, runs
        seeds = tuple(range(1, runs // 2 + 1))
        self._design = pattern.design.model_copy(update={"seeds": seeds, "looks": (), "pilot": None})
        self.folder.mkdir(parents=True)
        with closing(EventLog(home.database)) as log:
            self.events = write(log, self.name, self._judged(log))

    def _judged(self, log: EventLog) -> Iterator[Said]:
        """Yield all events; the verdicts are judged from those before them."""
        state, last = StudyState(), None
        for kind, payload in self._told():
            last = log.compose(self.name, kind, payload, after=last)
            state = fold([last], state)
            yield kind, payload
        for claim in self._design.hypotheses:
            verdict = judge_hypothesis(state, claim.id, look=1)
            last = log.compose(self.name, EventType.VERDICT_COMPUTED, verdict.model_dump(mode="json"), after=last)
            yield EventType.VERDICT_COMPUTED, verdict.model_dump(mode="json")
        yield EventType.STUDY_CONCLUDED, {"reason": "every hypothesis is judged"}

    def _told(self) -> Iterator[Said]:
        lock = self._design.hash()
        yield EventType.STUDY_CREATED, self._pattern.said(EventType.STUDY_CREATED)[0]
        for claim in self._design.hypotheses:
            yield EventType.HYPOTHESIS_PROPOSED, claim.model_dump(mode="json")
        (self.folder / LOCK_FILE).write_text(self._design.model_dump_json())
        locked = {"design": self._design.model_dump(mode="json"), "hash": lock, "file": LOCK_FILE}
        yield EventType.DESIGN_LOCKED, locked
        yield EventType.MODEL_PREPARED, {"sha256": None, "seconds": 0.0}
        specs = [
            confirm_spec(self.name, self._design, lock, arm, own)
            for seed in self._design.seeds for arm in self._design.arms
            for (own,) in [self._design.seeds_of(arm.name, [seed])]
        ]  # fmt: skip
        for spec in specs:
            yield EventType.RUN_PLANNED, {"run_id": spec.run_id, "spec": spec.model_dump(mode="json")}
        collected = self._pattern.said(EventType.RUN_COLLECTED)[0]  # its evaluation before training is its own
        mine = [event for event in self._pattern.events if event.payload.get("run_id") == collected["run_id"]]
        planned = next(said["spec"] for said in self._pattern.said(EventType.RUN_PLANNED)
                       if said["run_id"] == collected["run_id"])  # fmt: skip
        done = [(event.type.value, event.payload) for event in mine if event.type is not EventType.RUN_PLANNED]
        for spec in specs:
            other = {collected["run_id"]: spec.run_id, self._pattern.flight.name: self.name}
            other |= {planned["design_hash"]: lock, f'"seed":{planned["seed"]}': f'"seed":{spec.seed}'}
            for part in (collected["snapshot"], collected["evaluation"]):
                text = _replaced((self._source / part["path"]).read_text(), other)
                to = self.folder / _replaced(part["path"], other)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_text(text)
                other[part["sha256"]] = sha256(text.encode()).hexdigest()
            for kind, said in json.loads(_replaced(json.dumps(done), other)):
                yield EventType(kind), said


def _replaced(text: str, other: Mapping[str, str]) -> str:
    for before, after in other.items():
        text = text.replace(before, after)
    return text


def add_gallery_study(home: Home, name: str) -> str:
    """Put a study of the gallery into a home as if it had been made there; return its id."""
    folder = ROOT / "studies" / "gallery" / name
    study, rows, _ = read_export(folder)
    with closing(EventLog(home.database)) as log:
        insert(log, rows)
    shutil.copytree(folder, home.study(study))
    return study


class RunningStudy:
    """A study of which one run trains for real, as long as it is wanted, on the tiny model."""

    name = "it-trains"

    def __init__(self, home: Home, pattern: Pattern) -> None:
        job = Job(environment="guess", steps=1_000_000, episodes_per_step=16, group_size=4, seed=7,
                  model=TinyModel(warm_start_steps=50))  # fmt: skip
        self.job, base = job, job.model_dump(mode="json", exclude={"seed", "tracking"})
        metric = pattern.design.metric.model_copy(update={"episodes": 8})
        design = pattern.design.model_copy(
            update={"base_job": base, "looks": (), "pilot": None, "metric": metric, "seeds": (1, 2, 3)}
        )
        (own,) = design.seeds_of(design.arms[0].name, [1])
        spec = confirm_spec(self.name, design, design.hash(), design.arms[0], own)
        told: list[Said] = [
            (EventType.STUDY_CREATED, pattern.said(EventType.STUDY_CREATED)[0]),
            *((EventType.HYPOTHESIS_PROPOSED, claim.model_dump(mode="json")) for claim in design.hypotheses),
            (EventType.DESIGN_LOCKED,
             {"design": design.model_dump(mode="json"), "hash": design.hash(), "file": LOCK_FILE}),
            (EventType.MODEL_PREPARED, {"sha256": None, "seconds": 0.0}),
            (EventType.RUN_PLANNED, {"run_id": spec.run_id, "spec": spec.model_dump(mode="json")}),
            (EventType.ATTEMPT_LAUNCHED, {"run_id": spec.run_id, "attempt": 1, "name": f"{spec.run_id}-1"}),
        ]  # fmt: skip
        home.study(self.name).mkdir(parents=True)
        with closing(EventLog(home.database)) as log:
            write(log, self.name, iter(told))
        self._folder = AttemptFolder(home.attempt(self.name, spec.run_id, 1))
        self._folder.path.mkdir(parents=True)
        order = AttemptSpec(study=self.name, run_id=spec.run_id, attempt=1, spec=spec, models=str(home.models))
        write_json(self._folder.spec, order.model_dump(mode="json"))

    @contextmanager
    def training(self) -> Iterator[subprocess.Popen[bytes]]:
        """Train while inside."""
        command = [sys.executable, "-m", "research.runs.attempt", str(self._folder.path)]
        with (self._folder.path / "said").open("wb") as said:
            process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, start_new_session=True)
        try:
            yield process
        finally:
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for each in children:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.kill()
            process.wait()

    def step(self) -> tuple[int, float]:
        """Return how many steps are done, and when that was written."""
        found = read_progress(self._folder)
        return (0, 0.0) if found is None else (found.step, self._folder.progress.stat().st_mtime)


@dataclass(frozen=True)
class Served:
    """Pages that a process of their own serves."""

    url: str
    key: str
    process: psutil.Process

    def signed_in(self) -> httpx.Client:
        """Return a client of somebody who is signed in."""
        client = httpx.Client(base_url=self.url, timeout=600.0)
        assert client.post("/sign-in", data={"key": self.key}).status_code == 303
        return client

    def cpu_s(self) -> float:
        """Return the seconds of a core that it used so far."""
        used = self.process.cpu_times()
        return used.user + used.system


@contextmanager
def serving(home: Home) -> Iterator[Served]:
    """Run `ajet ui` over a home while inside."""
    command = [sys.executable, "-m", "research", "ui", "--port", "0"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "AJET_HOME": str(home.path), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"(http://127\S+)/sign-in#key=(\S+)", "".join(process.stdout.readline() for _ in "12"))
            assert found is not None
            yield Served(found[1], found[2], psutil.Process(process.pid))
        finally:
            process.terminate()


@contextmanager
def browsing() -> Iterator[Browser]:
    """Run a real browser while inside."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        yield browser
        browser.close()


def browser_s() -> float:
    """Return the seconds of a core that the processes of browsers used so far; of one that ended nothing."""
    used = 0.0
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used += sum(each.cpu_times()[:2]) if "chrom" in each.name() else 0.0
    return used


class _Told(EpisodeReaders):
    """Tells of one episode that it holds."""

    def __init__(self, home: Home, record: EpisodeRecord) -> None:
        super().__init__(home)
        self._record = record

    def list(self, place: EpisodePlace, limit: int = 500) -> Sequence[Any]:
        return [self._record]

    def read(self, place: EpisodePlace, episode: str) -> SeenEpisode:
        return SeenEpisode(self._record, "")


def long_episode(calls: int, sampled: int) -> EpisodeRecord:
    """Return an episode of so many calls, each of so many sampled tokens with log-probs all over."""
    said = TokenSpan(
        ids=tuple(range(sampled)), texts=tuple(f" w{n % 97}" for n in range(sampled)),
        logprobs=tuple(-((n * 37) % 100) / 20 for n in range(sampled)), versions=(3,) * sampled,
    )  # fmt: skip
    given = TokenSpan(ids=(1,) * 20, texts=(" given",) * 20)
    record = tuple(
        CallRecord(index=n, parent=n - 1 if n else None, drift="clean" if n else "start", context=given, sampled=said)
        for n in range(calls)
    )
    return EpisodeRecord(
        id="long", task_id="t", stream="default", kind="train", owner="o", state="ended", reward=0.5, calls=calls,
        tokens=calls * sampled, record=record,
    )  # fmt: skip


@contextmanager
def serving_episode(home: Home, record: EpisodeRecord) -> Iterator[tuple[str, str]]:
    """Serve the page of an episode from memory while inside; yield URL and key."""
    with closing(EventLog(home.database)) as log:
        site = Site(home, log, Access(home.path / "ui/keys.json"))
        site.readers = _Told(home, record)
        listening = bind(0)
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        app = make_app(site, PAGES, [host])
        server = PageServer(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield f"http://{host}", site.access.owner_key
        server.should_exit = True
        thread.join()
