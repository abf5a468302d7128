"""What do seeds alone do to the built-in tiny jobs? A/A runs: one job, several seeds, nothing else differs.

    python benchmarks/noise_bank.py                      6 runs of `guess` and of `arith`: about 10 minutes of one core
    python benchmarks/noise_bank.py --quick              2 runs of 2 steps each, kept nowhere
    python benchmarks/noise_bank.py --plumbing           only the run with a learning rate of 0, of each
    python benchmarks/noise_bank.py --json               also writes research/noise/{guess,arith}.json, which ajet ships

Each run is a whole attempt (`research.attempts.attempt`: server, client, both evaluations of 512 hidden episodes),
collected and hashed as a study's runs are; one at a time, with the default job, which is GRPO on the tiny model.
Before them comes one run with a learning rate of 0, which has to change nothing; with `--plumbing --json` its figures
alone are written anew, beside the observations that are there. What is written
joins the measured values with those of the gallery's studies, each with its provenance, and is read by
`research.noise.bank`. There is no goal: the figures are what designs are computed from.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rig.frame import circumstances, parser
from rig.training.training import ONE_THREAD

from research.design.pricing import EVALUATION_EPISODES
from research.files import read_json, write_json
from research.installation.tiny_model import prepare_model
from research.noise.bank import RESULTS_VERSION, BankFile, Checked, NoiseBank, model_key
from research.noise.figures import Observation
from research.results.attempt_files import AttemptFolder, AttemptOutcome, AttemptSpec
from research.results.collect import CollectedEvidence, collect
from studies import fold
from studies.checks.plumbing import fault_in, unsaid_in
from studies.log.event import examine
from studies.proof import exported, is_export
from studies.records.base import digest
from studies.records.design import Metric, RunSpec
from studies.records.design_parts import NoisePlan
from studies.records.run_specs import noise_hash, plumbing_spec
from swarm.job import Job

ENVIRONMENTS = ("guess", "arith")
SEEDS = (101, 102, 103, 104, 105, 106)
ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "research" / "noise"
GALLERY = ROOT / "studies" / "gallery"


def main() -> int:
    """Measure, print, and write what was asked; return the exit code."""
    options = parser(__doc__, quick="2 runs of 2 steps")
    options.add_argument("--environment", action="append", choices=ENVIRONMENTS, help="only this one")
    options.add_argument("--plumbing", action="store_true", help="only the run with a learning rate of 0")
    arguments = options.parse_args()
    os.environ.update(ONE_THREAD)  # before anything imports torch
    for environment in arguments.environment or ENVIRONMENTS:
        still = checked(environment)
        print(f"{environment}: {still}")
        path = SHIPPED / f"{environment}.json"
        if arguments.plumbing:
            if arguments.json:
                kept = BankFile.model_validate_json(path.read_bytes())
                made = {**kept.provenance, "plumbing": circumstances(arguments)}
                write(path, kept.model_copy(update={"plumbing": (still,), "provenance": made}))
            continue
        seen = list(measured(environment, arguments))
        if environment == "guess" and not arguments.quick:
            seen += gallery()
        told(environment, seen)
        if arguments.json and not arguments.quick:
            file = BankFile(
                results_version=RESULTS_VERSION, provenance=provenance(arguments), observations=tuple(seen),
                plumbing=(still,),
            )  # fmt: skip
            write(path, file)
    return 0


def write(path: Path, file: BankFile) -> None:
    """Write what ajet ships."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(file.model_dump(mode="json"), indent=1) + "\n")


def checked(environment: str) -> Checked:
    """Make the run with a learning rate of 0; raise SystemExit where it changed anything or could not be seen to."""
    job = Job(environment=environment)
    plan = NoisePlan(
        environment=environment, job=job.model_dump(mode="json", exclude={"seed", "tracking"}), seeds=(),
        metric_key="hidden/success", episodes=EVALUATION_EPISODES, plumbing=SEEDS[0],
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ajet-plumbing-") as scratch:
        prepare_model(job, Path(scratch) / "models", lambda line: None)
        spec = plumbing_spec(f"plumbing-{environment}", plan, noise_hash(plan), SEEDS[0])
        seen = evidence_of(spec, Path(scratch)).conditions
    fault, unsaid = fault_in(seen), unsaid_in(seen)
    if fault or unsaid or seen.stillness is None:
        raise SystemExit(f"{environment}: {fault or 'nobody could say ' + ' and '.join(unsaid)}")
    return Checked(
        environment=environment, model=model_key(job), steps=seen.steps, weights=seen.stillness.after,
        probs_diff=seen.probs_diff, probs_tolerance=seen.stillness.probs_tolerance,
    )  # fmt: skip


def provenance(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return where and how the runs were made."""
    return {
        **circumstances(arguments),
        "command": "python benchmarks/noise_bank.py --json",
        "gallery": "hidden success before and after, from the event logs of the gallery's exported studies",
    }


def measured(environment: str, arguments: argparse.Namespace) -> Iterator[Observation]:
    """Make the A/A runs, one after the other, and yield what each came to."""
    job = Job(environment=environment, **({"steps": 2} if arguments.quick else {}))
    values = job.model_dump(mode="json", exclude={"seed", "tracking"})
    seeds = SEEDS[:2] if arguments.quick else SEEDS
    metric = Metric(meaning="share of hidden episodes solved", episodes=EVALUATION_EPISODES)
    plan = NoisePlan(environment=environment, job=values, seeds=seeds, metric_key=metric.key, episodes=metric.episodes)
    lock = digest(plan.model_dump(mode="json"))
    with tempfile.TemporaryDirectory(prefix="ajet-noise-") as scratch:
        prepare_model(job, Path(scratch) / "models", lambda line: None)
        for seed in seeds:
            spec = RunSpec(
                study=f"noise-{environment}", design_hash=lock, arm="same", seed=seed, environment=environment,
                job={**values, "seed": seed}, metric=metric, phase="noise",
            )  # fmt: skip
            yield attempted(spec, Path(scratch))


def attempted(spec: RunSpec, scratch: Path) -> Observation:
    """Make one run as a study does and return its observation."""
    values = {measurement.key: measurement.value for measurement in evidence_of(spec, scratch).measurements}
    print(f"{spec.study} seed {spec.seed}: {values}", file=sys.stderr, flush=True)
    return observed(spec, values[spec.metric.key + "/initial"], values[spec.metric.key])


def evidence_of(spec: RunSpec, scratch: Path) -> CollectedEvidence:
    """Make one run as a study does and return what was collected of it."""
    folder = AttemptFolder(scratch / spec.run_id)
    folder.path.mkdir()
    order = AttemptSpec(study=spec.study, run_id=spec.run_id, attempt=1, spec=spec, models=str(scratch / "models"))
    write_json(folder.spec, order.model_dump(mode="json"))
    subprocess.run([sys.executable, "-m", "research.attempts.attempt", str(folder.path)], check=True, cwd=ROOT)
    said = AttemptOutcome.model_validate(read_json(folder.outcome))
    return collect(folder, order, scratch / "collected", said=said)


def observed(spec: RunSpec, before: float, after: float) -> Observation:
    """Return a run's values as the bank holds them."""
    job = Job.model_validate(spec.job)
    shared = {name: value for name, value in spec.job.items() if name != "seed"}
    return Observation(
        run=spec.run_id, study=spec.study, environment=spec.environment, model=model_key(job),
        algorithm=job.algorithm, group=digest([spec.study, spec.design_hash, spec.arm, shared])[:16],
        pairing=digest([spec.study, spec.design_hash, spec.phase])[:16],
        decoding=f"temperature {job.temperature:g}, {job.max_tokens} tokens", seed=spec.seed, steps=job.steps,
        metric=f"{spec.metric.split}:{spec.metric.key}", episodes=spec.metric.episodes, value=after, initial=before,
    )  # fmt: skip


def gallery() -> Iterator[Observation]:
    """Yield the runs of the gallery's studies that were collected."""
    for folder in sorted(GALLERY.iterdir()):
        if not is_export(folder):
            continue
        study, rows, _ = exported(folder)
        for run in fold(examine(study, rows)[0]).runs.values():
            values = {key: found.value for key, found in run.measurements.items()}
            if run.status == "collected":
                yield observed(run.spec, values[run.spec.metric.key + "/initial"], values[run.spec.metric.key])


def told(environment: str, seen: list[Observation]) -> None:
    """Print what the bank says from these observations."""
    bank = NoiseBank(frozenset(seen))
    job = Job(environment=environment)
    for episodes in (EVALUATION_EPISODES, 4 * EVALUATION_EPISODES):
        metric = Metric(meaning="-", episodes=episodes)
        noise = bank.find(environment, job, metric)
        print(f"{environment}, {episodes} episodes: {noise or bank.why_not(environment, job, metric)}")


if __name__ == "__main__":
    sys.exit(main())
