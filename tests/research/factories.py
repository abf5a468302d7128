"""What tests of research are made of: homes, and orders of attempts at runs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from research.installation.home import Home
from research.proposals.actions import ProposedHypothesis
from research.runs.files import AttemptSpec
from studies import EventLog
from studies.metrics import Asked, kind_named
from studies.records.design import Metric, RunSpec, Schedule
from studies.records.runs import add_evaluation_steps
from studies.records.verdict import Verdict
from swarm.job import Job
from tests.studies.synthetic import STUDY, Synthetic, Ticking


def make_home(path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(path)}).prepare()


def make_study(home: Home | None = None, study: str = STUDY, log: EventLog | None = None, **fields: Any) -> Synthetic:
    """Return a study in the database of an installation (this one's where none is given), not yet created."""
    home = home or Home.locate().prepare()
    made = Synthetic(home.study(study), study=study, **fields)
    made.log.close()
    (made.folder / "events.db").unlink()
    made.log = log or EventLog(home.database, clock=Ticking())
    return made


def make_order(attempt: int = 1, *, episodes: int = 64, models: str = "models", **fields: Any) -> AttemptSpec:
    """Return the spec of an attempt at a run; `fields` are its job's."""
    job = Job.model_validate({"steps": 3, "backend": "fake", "seed": 7, "environment": "guess", **fields})
    spec = RunSpec(
        study="s1", design_hash="d" * 64, arm="group_size=8", seed=job.seed, environment=job.environment,
        job=job.model_dump(mode="json", exclude={"tracking"}),
        metric=Metric(meaning="share of hidden tasks solved", episodes=episodes),
    )  # fmt: skip
    return AttemptSpec(study="s1", run_id=spec.run_id, attempt=attempt, spec=spec, models=models)


def with_run(order: AttemptSpec, **changes: Any) -> AttemptSpec:
    spec = order.spec.model_copy(update=changes)
    return order.model_copy(update={"spec": spec, "run_id": spec.run_id})


def with_schedule(order: AttemptSpec, every: int, episodes: int = 16) -> AttemptSpec:
    """Return the order with its policy evaluated every so many training steps, and judged by the area."""
    job, per_step = order.spec.job, order.spec.job["episodes_per_step"]
    schedule = Schedule(every=every * per_step, episodes=episodes)
    asked = Asked("it is solved", order.spec.metric.episodes, job["steps"] * per_step, schedule=schedule)
    metric = kind_named("area").define(asked)
    return with_run(order, metric=metric, job=add_evaluation_steps(job, metric))


def make_claim(
    variable: str = "group_size", control: Any = 4, treatment: Any = 16, **changes: Any
) -> ProposedHypothesis:
    usual: dict[str, Any] = {
        "mechanism": "Less noise.", "variable": variable, "control": control, "treatment": treatment,
        "direction": "increase", "predicted_low": 0.0, "predicted_high": 0.2, "probability": 0.5,
    }  # fmt: skip
    return ProposedHypothesis(**(usual | changes))


def make_environment(name: str, title: str, synonyms: tuple[str, ...], measures: str) -> Any:
    """Return what topics and planners know of an environment, and nothing that could be played."""
    return SimpleNamespace(name=name, title=title, synonyms=synonyms, measures=measures)


def make_verdict(hypothesis: str = "h1", verdict: str = "inconclusive", **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "hypothesis": hypothesis, "verdict": verdict, "reason": "the interval holds 0", "estimate": 0.01, "low": -0.1,
        "high": 0.12, "level": 0.95, "p": 0.8, "n_control": 3, "n_treatment": 3, "mean_control": 0.4,
        "mean_treatment": 0.41, "sd_control": 0.02, "sd_treatment": 0.02, "test": "welch", "inputs_sha256": "0" * 64,
        "within_prediction": True, "brier": None,
    }  # fmt: skip
    return Verdict(**(values | changes))


def edit(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes], *needs: str) -> Path:
    """Write a wheel into a folder, making that; return it. `needs` are requirements."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    inside = {
        **files,
        f"{stem}.dist-info/METADATA": metadata + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*inside, f"{stem}.dist-info/RECORD"))
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_inside, data in {**inside, f"{stem}.dist-info/RECORD": record}.items():
            archive.writestr(name_inside, data)
    return path
