"""What do seeds alone do to the built-in tiny jobs? A/A runs: one job, several seeds, nothing else differs.

    python benchmarks/noise_bank.py                      6 runs of `guess` and of `arith`: about 10 minutes of one core
    python benchmarks/noise_bank.py --quick              2 runs of 2 steps each, kept nowhere
    python benchmarks/noise_bank.py --plumbing           only the run with a learning rate of 0, of each
    python benchmarks/noise_bank.py --gallery            only the gallery's runs, as they are exported: seconds
    python benchmarks/noise_bank.py --landscape          only simlab's recorded landscape of `arith`: seconds
    python benchmarks/noise_bank.py --studies .ajet --json   only the runs of `words` that studies of an installation
                                                         made, by a pretrained model, in words.json: seconds
    python benchmarks/noise_bank.py --json               also writes {guess,arith}.json of research/design, shipped
    python benchmarks/noise_bank.py --metric episodes:0.7 --metric area:0.7 --json
                                                         by these, in {guess,arith}-metrics.json

Each run is a whole attempt (`research.runs.attempt`: server, client, both evaluations of 512 hidden episodes),
collected and hashed as a study's runs are; one at a time, with the default job, which is GRPO on the tiny model. With
`--metric` they are evaluated during training as the first of them asks, and all of them are read off the same files.
Before the runs by success comes one with a learning rate of 0, which has to change nothing; `--plumbing --json` writes
its figures alone anew, beside the observations that are there, and `--gallery --json` adds the gallery's runs that are
not. `--landscape --json` writes arith-landscape.json: 36 settings with 6 seeds each, without those of a learning rate
of 0.01, at which most trainings fall below their beginning; `guess` was recorded with half the default's batch. What is
written has its provenance and is read by `research.design.noise_bank`. There is no goal: the figures are what designs
are computed from.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from rig.frame import circumstances, parser
from rig.training import ONE_THREAD

from research.design.noise_bank import (
    BankFile,
    NoiseBank,
    Observation,
    ZeroLrRun,
    job_key,
    load_shipped_bank,
    metric_key,
    model_key,
    setting_key,
)
from research.design.pricing import EVALUATION_EPISODES
from research.files import read_json, write_json
from research.installation.home import Home
from research.installation.studies import RESULTS_VERSION
from research.installation.tiny_model import prepare_model
from research.proposals.metric_choice import MetricChoice, RequestedMetric, add_evaluations
from research.runs.collect import CollectedEvidence, collect
from research.runs.files import AttemptFolder, AttemptOutcome, AttemptSpec
from studies import EventLog, fold
from studies.checks.conditions import find_fault, list_unreported, play_variance
from studies.log.event import find_corruption
from studies.metrics import Results, kind_of
from studies.proof import is_export, read_export
from studies.records.base import digest
from studies.records.design import Metric, NoisePlan, RunSpec
from studies.records.runs import Conditions, zero_lr_spec
from swarm.job import Job

ENVIRONMENTS = ("guess", "arith")
OF_A_MODEL = "words"
"""Played by a pretrained model alone."""
SEEDS = (101, 102, 103, 104, 105, 106)
ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "research" / "design"
GALLERY = ROOT / "studies" / "gallery"
LANDSCAPES = ROOT / "benchmarks" / "simlab" / "landscape_data"
LANDSCAPE = "hidden success before and after, each task played once, of a grid of trainings with the same six seeds"
HIGHEST_RATE = 0.003
COMMAND = "python benchmarks/noise_bank.py"
SUCCESS = Metric(meaning="share of hidden episodes solved", episodes=EVALUATION_EPISODES)
EVALUATIONS = (SUCCESS, SUCCESS.model_copy(update={"episodes": 4 * EVALUATION_EPISODES}))
FROM_GALLERY = "hidden success before and after, and the variance of a play, from the gallery's exported studies"


def main() -> int:
    """Measure, print, and write what was asked; return the exit code."""
    options = parser(__doc__, quick="2 runs of 2 steps")
    options.add_argument("--environment", action="append", choices=ENVIRONMENTS, help="only this one")
    options.add_argument("--plumbing", action="store_true", help="only the run with a learning rate of 0")
    options.add_argument("--gallery", action="store_true", help="only the runs of the gallery's studies")
    options.add_argument("--landscape", action="store_true", help="only the recorded landscape of arith")
    options.add_argument("--metric", action="append", type=RequestedMetric.parse, help="by this, such as episodes:0.7")
    options.add_argument("--studies", type=Path, help="only runs of `words` of the studies in this installation")
    arguments = options.parse_args()
    if arguments.studies is not None:
        by_studies(OF_A_MODEL, arguments)
        return 0
    os.environ.update(ONE_THREAD)  # before anything imports torch
    for environment in arguments.environment or ENVIRONMENTS:
        if arguments.landscape:
            if environment == "arith":
                by_landscape(environment, arguments)
        elif arguments.metric:
            by_metrics(environment, arguments)
        else:
            by_success(environment, arguments)
    return 0


def by_success(environment: str, arguments: argparse.Namespace) -> None:
    """Measure by success, after the run with a learning rate of 0; print, and write what was asked."""
    path, job = SHIPPED / f"{environment}.json", Job(environment=environment)
    if arguments.gallery:
        kept = BankFile.model_validate_json(path.read_bytes())
        seen = [*kept.observations, *(run for run in gallery(environment) if run not in kept.observations)]
        told(job, seen, EVALUATIONS)
        if arguments.json:
            made = {**kept.provenance, "gallery": {**circumstances(arguments), "runs": FROM_GALLERY}}
            write(path, kept.model_copy(update={"observations": tuple(seen), "provenance": made}))
        return
    still = checked(environment)
    print(f"{environment}: {still}")
    if arguments.plumbing:
        if arguments.json:
            kept = BankFile.model_validate_json(path.read_bytes())
            made = {**kept.provenance, "plumbing": circumstances(arguments)}
            write(path, kept.model_copy(update={"plumbing": (still,), "provenance": made}))
        return
    job = Job(environment=environment, **({"steps": 2} if arguments.quick else {}))
    seen = list(measured(job, [SUCCESS], SEEDS[:2] if arguments.quick else SEEDS))
    if not arguments.quick:
        seen += gallery(environment)
    told(job, seen, EVALUATIONS)
    if arguments.json and not arguments.quick:
        made = {**circumstances(arguments), "command": f"{COMMAND} --json", "gallery": {"runs": FROM_GALLERY}}
        write(path, BankFile(results_version=RESULTS_VERSION, provenance=made, observations=tuple(seen),
                             plumbing=(still,)))  # fmt: skip


def by_studies(environment: str, arguments: argparse.Namespace) -> None:
    """Read the runs of an environment off an installation's log, print, and write what was asked."""
    with closing(EventLog(Home.locate({"AJET_HOME": str(arguments.studies)}).database)) as log:
        known = NoiseBank.of(log, shipped=NoiseBank())
    seen = sorted((run for run in known.observations if run.environment == environment), key=lambda run: run.run)
    for run in seen:
        print(f"{environment}: seed {run.seed}, {run.steps} steps, setting {run.setting}: {run.initial} -> {run.value}")
    if arguments.json:
        made = {**circumstances(arguments), "command": f"{COMMAND} --studies .ajet --json"}
        file = BankFile(results_version=RESULTS_VERSION, provenance=made, observations=tuple(seen))
        write(SHIPPED / f"{environment}.json", file)


def by_metrics(environment: str, arguments: argparse.Namespace) -> None:
    """Measure by the metrics that were asked for, print, and write what was asked."""
    job = Job(environment=environment, **({"steps": 10} if arguments.quick else {}))
    metrics = [MetricChoice(asked, lambda _: 0.0).metric([job], EVALUATION_EPISODES) for asked in arguments.metric]
    seen = list(measured(job, metrics, SEEDS[:2] if arguments.quick else SEEDS))
    told(job, seen, metrics)
    if arguments.json and not arguments.quick:
        asked = " ".join(f"--metric {metric.text}" for metric in arguments.metric)
        made = {**circumstances(arguments), "command": f"{COMMAND} {asked} --json"}
        file = BankFile(results_version=RESULTS_VERSION, provenance=made, observations=tuple(seen))
        write(SHIPPED / f"{environment}-metrics.json", file)


def by_landscape(environment: str, arguments: argparse.Namespace) -> None:
    """Read the recorded landscape as observations, print, and write what was asked."""
    recorded = json.loads(gzip.decompress((LANDSCAPES / f"{environment}.json.gz").read_bytes()))
    episodes, seeds, columns = recorded["plays"]["hidden"], recorded["seeds"], recorded["runs"]
    metric, runs = (
        SUCCESS.model_copy(update={"episodes": episodes}),
        zip(columns["before"], columns["after"], strict=True),
    )
    lock, seen = digest(recorded["provenance"]), []
    for place in itertools.product(*recorded["knobs"].values()):
        varied = dict(zip(recorded["knobs"], place, strict=True))
        job = {**Job.model_validate(recorded["job"]).model_dump(mode="json"), **varied}
        for seed, (before, after) in zip(seeds, itertools.islice(runs, len(seeds)), strict=True):
            spec = RunSpec(
                study=f"landscape-{environment}", design_hash=lock, arm="/".join(map(str, place)), seed=seed,
                environment=environment, job={**job, "seed": seed}, metric=metric,
            )  # fmt: skip
            shares = {metric.key: after / episodes, f"{metric.key}/initial": before / episodes}
            if job["learning_rate"] <= HIGHEST_RATE:
                seen.append(observed(spec, metric, shares, None))
    known = [*load_shipped_bank().observations, *seen]
    told(Job(environment=environment), known, EVALUATIONS)
    if arguments.json:
        made = {**recorded["provenance"], "read_by": f"{COMMAND} --landscape --json", "of": LANDSCAPE}
        file = BankFile(results_version=RESULTS_VERSION, provenance=made, observations=tuple(seen))
        write(SHIPPED / f"{environment}-landscape.json", file)


def write(path: Path, file: BankFile) -> None:
    """Write what ajet ships, an observation a line."""
    value = file.model_dump(mode="json", exclude_none=True)
    lines = ",\n".join(json.dumps(entry) for entry in value.pop("observations"))
    path.write_text(f'{json.dumps(value, indent=1)[:-2]},\n "observations": [\n{lines}\n]}}\n')


def checked(environment: str) -> ZeroLrRun:
    """Make the run with a learning rate of 0; raise SystemExit where it changed anything or could not be seen to."""
    job = Job(environment=environment)
    plan = NoisePlan(
        environment=environment, job=job.model_dump(mode="json", exclude={"seed", "tracking"}), seeds=(),
        metric_key="hidden/success", episodes=EVALUATION_EPISODES, plumbing=SEEDS[0],
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ajet-plumbing-") as scratch:
        prepare_model(job, Path(scratch) / "models", lambda line: None)
        spec = zero_lr_spec(f"plumbing-{environment}", plan, plan.hash(), SEEDS[0])
        seen = Conditions.model_validate(evidence_of(spec, Path(scratch)).payload["conditions"])
    fault, unsaid = find_fault(seen), list_unreported(seen)
    if fault or unsaid or seen.stillness is None:
        raise SystemExit(f"{environment}: {fault or 'nobody could say ' + ' and '.join(unsaid)}")
    return ZeroLrRun(
        environment=environment, model=model_key(job), steps=seen.steps, weights=seen.stillness.after,
        probs_diff=seen.probs_diff, probs_tolerance=seen.stillness.probs_tolerance,
    )  # fmt: skip


def measured(job: Job, metrics: Sequence[Metric], seeds: Sequence[int]) -> Iterator[Observation]:
    """Make the A/A runs, one after the other, and yield what each came to by each of these metrics."""
    plan = NoisePlan(
        environment=job.environment, job=job.model_dump(mode="json", exclude={"seed", "tracking"}), seeds=tuple(seeds),
        metric_key=metrics[0].key, episodes=metrics[0].episodes,
    )  # fmt: skip
    lock = digest(plan.model_dump(mode="json"))
    values = add_evaluations(job, metrics[0]).model_dump(mode="json", exclude={"seed", "tracking"})
    with tempfile.TemporaryDirectory(prefix="ajet-noise-") as scratch:
        prepare_model(job, Path(scratch) / "models", lambda line: None)
        for seed in seeds:
            spec = RunSpec(
                study=f"noise-{job.environment}", design_hash=lock, arm="same", seed=seed, environment=job.environment,
                job={**values, "seed": seed}, metric=metrics[0], phase="noise",
            )  # fmt: skip
            evidence = evidence_of(spec, Path(scratch))
            parts = (evidence.payload["evaluation"], evidence.payload["snapshot"])
            files = (Path(scratch) / "collected" / part["path"] for part in parts)
            stored, tracked = (json.loads(file.read_bytes()) for file in files)
            read = Results(stored["initial"], stored["final"], stored.get("during", ()), tracked["history"])
            for metric in metrics:
                found = {key: value.value for key, value in kind_of(metric).measure(metric, read).items()}
                print(f"{spec.study} seed {spec.seed}: {found}", file=sys.stderr, flush=True)
                yield observed(spec, metric, found, evidence.payload.get("play_variance"))


def evidence_of(spec: RunSpec, scratch: Path) -> CollectedEvidence:
    """Make one run as a study does and return what was collected of it."""
    folder, order, said = attempted_in(spec, scratch)
    return collect(folder, order, scratch / "collected", said=said)


def attempted_in(spec: RunSpec, scratch: Path) -> tuple[AttemptFolder, AttemptSpec, AttemptOutcome]:
    """Make one run as a study does, in a folder of its own under `scratch`; return it, the order, and the end."""
    folder = AttemptFolder(scratch / spec.run_id)
    folder.path.mkdir()
    order = AttemptSpec(study=spec.study, run_id=spec.run_id, attempt=1, spec=spec, models=str(scratch / "models"))
    write_json(folder.spec, order.model_dump(mode="json"))
    subprocess.run([sys.executable, "-m", "research.runs.attempt", str(folder.path)], check=True, cwd=ROOT)
    return folder, order, AttemptOutcome.model_validate(read_json(folder.outcome))


def observed(spec: RunSpec, metric: Metric, values: Mapping[str, float], of_play: float | None) -> Observation:
    """Return a run's value of a metric as the bank holds it."""
    job = Job.model_validate(spec.job)
    shared = {name: value for name, value in spec.job.items() if name != "seed"}
    return Observation(
        run=spec.run_id, study=spec.study, environment=spec.environment, model=model_key(job),
        algorithm=job.algorithm, group=digest([spec.study, spec.design_hash, spec.arm, shared])[:16],
        pairing=digest([spec.study, spec.design_hash, spec.phase])[:16],
        decoding=f"temperature {job.temperature:g}, {job.max_tokens} tokens", seed=spec.seed, steps=job.steps,
        metric=metric_key(metric), episodes=metric.episodes, value=values[metric.key],
        initial=values.get(f"{metric.key}/initial"), play_variance=of_play, job=job_key(job),
        setting=setting_key(job),
    )  # fmt: skip


def gallery(environment: str) -> Iterator[Observation]:
    """Yield the runs of an environment that the gallery's studies collected, judged by success."""
    for folder in sorted(GALLERY.iterdir()):
        if not is_export(folder):
            continue
        study, rows, _ = read_export(folder)
        for run in fold(find_corruption(study, rows)[0]).runs.values():
            if run.status != "collected" or (run.spec.environment, run.spec.metric.key) != (environment, SUCCESS.key):
                continue
            values = {key: found.value for key, found in run.measurements.items()}
            evaluation = read_json(folder / "runs" / run.run_id / "evaluation.json")["final"]
            yield observed(run.spec, run.spec.metric, values, play_variance(evaluation))


def told(job: Job, seen: Sequence[Observation], metrics: Sequence[Metric]) -> None:
    """Print what the bank says of each metric from these observations."""
    bank = NoiseBank(frozenset(seen))
    for metric in metrics:
        said = bank.find(job.environment, job, metric)
        print(f"{job.environment}, {metric.key}, {metric.episodes} episodes: {said}")


if __name__ == "__main__":
    sys.exit(main())
