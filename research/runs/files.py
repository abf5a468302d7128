"""What lies in the folder of one attempt at a run, and the values its files hold.

    attempt.json             the spec, written by the study before the attempt is launched
    progress.json            about once a second; for display only
    outcome.json             how it ended, as it reports; absent when it was killed
    evaluation-WHEN.json     initial, during, kept (of an attempt that is gone on from), final, other (environment)
    given/ROLE/              where a process of the role works; gone once it has ended
    exchange/                sockets through which containers speak, one folder each
    server/                  the swarm server's folder; gone once a later attempt has taken it over
    pruned.json              what was removed last of server/ once its run was over, and its bytes
    wandb/, logs/            the W&B log; output of server, client and evaluator

An attempt that goes on from step n keeps evaluations of versions before n only: later weights are now reached by other
episodes, so version n and later ones are played again.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from research.files import read_json, size_of, write_json
from research.installation.home import attempt_in
from research.isolation.mode import PROCESS, Sandboxing
from research.text import MOST_SECONDS
from studies import StudyState
from studies.metrics import other_environment
from studies.records.base import Record
from studies.records.design import RunSpec
from studies.records.procedure import Watchdog
from studies.records.runs import Conditions
from swarm.client.async_client import EPISODE_TIMEOUT_S
from swarm.job import Job, Tracking

LEAST_SILENCE_S = 120.0
"""An update of a large batch on a busy core answers nothing for a minute."""
LONGEST_TAG = 64
"""Characters that W&B takes of a tag."""
Stage = Literal["boot", "initial", "train", "final", "other", "stop"]
STAGES: Final[Mapping[Stage, str]] = {
    "boot": "its server starts",
    "initial": "hidden tasks are played before training",
    "train": "training begins",
    "other": "the last policy plays in another environment, or at its own knobs",
    "final": "hidden tasks are played after training",
    "stop": "its server stops",
}
"""What begins with each."""
Role = Literal["client", "evaluator-initial", "evaluator-during", "evaluator-final", "evaluator-other"]
"""Who plays in an attempt."""
EvaluationName = Literal["initial", "during", "final", "other"]
"""Which of its evaluations."""


class _StrictFile(BaseModel):
    """What an evaluator writes: checked strictly, nothing is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AttemptSpec(Record):
    """What an attempt is to do."""

    study: str
    run_id: str
    attempt: int = Field(ge=1)
    spec: RunSpec
    models: str
    """Folder of the model cache."""
    environments: str = ""
    """Folder of the environments that were brought; empty in specs of versions that knew none."""
    server: str = ""
    """The swarm server elsewhere that trains for it, by address or name; empty where it starts one of its own."""
    lineage: str = ""
    """Names its training on that server (`swarm.job`): the tracking id of the attempt that began it."""
    packages: tuple[str, ...] = ()
    """Folders of the packages that the environment's code needs, for processes."""
    sandbox: Sandboxing = PROCESS
    """Where its client and its evaluators run."""
    containers: str = ""
    """Root of the containers' folders; empty where there are none."""
    time_limit_s: float | None = None
    """What no container of it may outlive."""
    play_s: float = EPISODE_TIMEOUT_S
    """Longest that one play may take, waiting for updates included."""
    silence_s: float = LEAST_SILENCE_S
    """For how long its server may be silent, where no watchdog says it."""
    watchdog: Watchdog | None = None
    """The locked limits of its training; None where the design has none."""
    resumes: int | None = None
    """The attempt whose training it goes on with: its server's folder was moved here; None: it begins from nothing."""
    initial_sha256: str = ""
    """Of the evaluation before training that was copied here; empty where it makes its own."""
    initial_of: str = ""
    """The run whose evaluation of the untrained policy that is; empty where it is of this run's own attempt before."""
    initial_episodes: int | None = None
    """Plays of it, where it is of another run."""
    during_sha256: str = ""
    """Of the evaluations during training that were copied from there; empty where there were none."""

    @property
    def run(self) -> RunSpec:
        return self.spec

    @property
    def job(self) -> Job:
        return Job.from_record(self._job_record)

    @property
    def _job_record(self) -> dict[str, Any]:
        asks: dict[str, Any] = {"external_advantages": True} if "advantage" in self.spec.sources else {}
        return {**self.spec.job, **asks, **({"lineage": self.lineage} if self.server else {})}

    @property
    def evaluate_after(self) -> tuple[int, ...]:
        return tuple(self.spec.job.get("evaluate_after", ()))

    @property
    def other_environment(self) -> str | None:
        return other_environment(self.spec.metric, self.spec.job)

    @property
    def tracking_id(self) -> str:
        """Return the W&B run id: the run and the attempt, so that it can be found and never mixed up."""
        return f"{self.run_id}-a{self.attempt}"

    def labels(self) -> dict[str, str]:
        return {"study": self.study, "run_id": self.run_id, "attempt": str(self.attempt)}

    def names(self) -> dict[str, Any]:
        """Return the identity that the tracked run must carry in its config (the job's digest is the server's)."""
        return {
            "study": self.study, "design_hash": self.spec.design_hash, "arm": self.spec.arm, "seed": self.spec.seed,
            "run_id": self.run_id, "attempt": self.attempt, "job_digest": self.job.digest(),
        }  # fmt: skip

    def job_with_tracking(self, folder: "AttemptFolder") -> Job:
        tracking = Tracking(
            group=self.study, name=f"{self.spec.arm} seed {self.spec.seed}", run_id=self.tracking_id,
            directory="" if self.server else str(folder.path), config=self.names(),
            tags=tuple(tag[:LONGEST_TAG] for tag in (self.study, self.spec.arm, self.spec.phase)),
        )  # fmt: skip
        return Job.from_record({**self._job_record, "tracking": tracking})


class AttemptProgress(Record):
    """The progress of an attempt."""

    stage: Stage
    step: int = 0
    steps: int
    train_success: float | None = None
    """Share of the last batch's episodes that were solved; None before the first step."""
    train_reward: float | None = None
    """Mean reward of the last batch's episodes; None before the first step, and in files of older versions."""
    hidden_success: float | None = None
    """Share of hidden tasks solved in the latest evaluation; None before the first."""
    refused: int = 0
    """Requests from containers that were refused."""
    seconds: float
    """Since the attempt began."""


class AttemptOutcome(Record):
    """How an attempt ended. What earlier versions wrote besides is not read."""

    model_config = ConfigDict(extra="ignore")

    status: Literal["finished", "failed"]
    code: str
    """`ok`, or what failed: `boot_failed`, `server_died`, `server_failed`, `client_died`, ..."""
    reason: str = ""
    seconds: float = Field(ge=0, le=MOST_SECONDS)
    stages: Mapping[str, float]
    """Seconds of each stage that was begun."""
    refused: Mapping[str, int] = {}
    """Requests from containers that were refused, by who asked and why."""
    seen: Conditions = Conditions()
    """What it saw of its server and its machine; all else is told by its files (`provenance.build_conditions`)."""
    stopped_by: str = ""
    """Code of the watchdog's rule that ended training early, as the attempt reports; collecting finds it again."""
    files: Mapping[str, str] = {}
    """sha256 of the evaluations and of the tracker's log, by their path in the folder, when the attempt ended."""
    resumed_at: int | None = None
    """Training steps that the server had when the attempt went on with it; None where it began from nothing."""
    step: int | None = None
    """Training steps that were done when an attempt with code failed."""


class EpisodeOutcome(_StrictFile):
    """One play of one hidden task."""

    task_id: str
    sample: int
    success: bool
    reward: float = Field(allow_inf_nan=False)
    facts: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)  # no copy each time
    """Named numbers that the environment says of the play; empty for one that says none."""
    tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens that the policy sampled in it, as the server counted; None in files of versions that did not tell."""
    failed: str = ""
    """The error by which its agent failed the play, which is not solved then; earlier versions played it again."""

    @property
    def error(self) -> str:
        found = re.match(r"\w{1,40}", self.failed)
        return found[0] if found else "an error without a name"


class TranscriptMessage(_StrictFile):
    """One message of a play."""

    role: str
    content: str


class Transcript(_StrictFile):
    """One play of one hidden task, word for word as far as it was kept."""

    task_id: str
    messages: list[TranscriptMessage]


class Evaluation(_StrictFile):
    """What the harness's evaluator wrote: every outcome, no average."""

    environment: str
    split: str
    policy_version: int
    episodes: list[EpisodeOutcome]
    transcripts: list[Transcript] = []
    """A few plays for people to read; empty in evaluations of versions that kept none."""
    knobs: dict[str, Any] = {}
    """What knobs of the environment were set to."""

    @property
    def success(self) -> float:
        return sum(episode.success for episode in self.episodes) / len(self.episodes)


class Evaluations(_StrictFile):
    """What the evaluator during training wrote."""

    evaluations: list[Evaluation]
    """By the versions of their policies, which grow."""


class RunEvaluation(_StrictFile):
    """The stored evaluation of a run."""

    study: str | None = None
    """The run's study; None in files from before they named it."""
    run_id: str
    attempt: int
    initial: Evaluation
    final: Evaluation
    during: list[Evaluation] = []
    """Of the policies between, by their versions; empty where the design asks for none."""
    other: Evaluation | None = None
    """Of the last policy on another environment, or at the run's own knobs; None where the design asks for none."""


class AttemptFolder:
    """The paths of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "attempt.json"
        self.progress = path / "progress.json"
        self.outcome = path / "outcome.json"
        self.server = path / "server"
        self.worker_dirs = path / "given"
        self.kept = path / "evaluation-kept.json"
        """The evaluations during training that an earlier attempt made."""

    def exchange(self, worker: str) -> Path:
        return self.path / "exchange" / worker

    def evaluation(self, which: EvaluationName) -> Path:
        return self.path / f"evaluation-{which}.json"

    def worker_dir(self, role: Role) -> Path:
        return self.worker_dirs / role

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"


def read_progress(folder: AttemptFolder) -> AttemptProgress | None:
    """Return the progress of an attempt; None when there is none, or when a power cut left half of it."""
    try:
        value = read_json(folder.progress)
        return None if value is None else AttemptProgress.model_validate(value)
    except ValueError:  # of JSON or of the model; it is for display only, and written anew within a second
        return None


def read_evaluations(path: Path) -> list[Evaluation]:
    """Return the evaluations in a file, by their versions; none without one. ValueError for what is none."""
    try:
        found = Evaluations.model_validate_json(path.read_bytes()).evaluations
    except FileNotFoundError:
        return []
    versions = [evaluation.policy_version for evaluation in found]
    if versions != sorted(set(versions)):
        raise ValueError(f"expected evaluations of growing versions; found {versions}")
    return found


def write_evaluations(path: Path, evaluations: Iterable[Evaluation]) -> str:
    """Write evaluations as their evaluator does, each version once, the last given one; return the file's sha256."""
    of = {evaluation.policy_version: evaluation for evaluation in evaluations}
    ordered = [of[version].model_dump(mode="json", exclude_defaults=True) for version in sorted(of)]
    return write_json(path, {"evaluations": ordered})


def evaluation_of(role: Role) -> EvaluationName:
    return next(name for name in get_args(EvaluationName) if role == f"evaluator-{name}")


def due_versions(spec: AttemptSpec, step: int) -> list[int]:
    """Return the versions of which a training of so many steps has evaluations: it waited for each before the next."""
    return [version for version in spec.evaluate_after if version < step]


def evaluations_before(evaluations: Iterable[Evaluation], step: int) -> list[Evaluation]:
    return [evaluation for evaluation in evaluations if evaluation.policy_version < step]


def missing_versions(spec: AttemptSpec, evaluations: Iterable[Evaluation], step: int) -> list[int]:
    """Return the versions that are due at a step and have no evaluation."""
    made = {evaluation.policy_version for evaluation in evaluations}
    return [version for version in due_versions(spec, step) if version not in made]


def find_kept_file(folder: AttemptFolder) -> Path | None:
    """Return the file that holds what a later attempt keeps of this one, made or given; None where there is none."""
    return next((path for path in (folder.evaluation("during"), folder.kept) if path.is_file()), None)


Keep = Literal["none", "last", "all"]
"""Which checkpoints of a run stay: `last` is that of its last step, without what only training on would read."""


def prune_runs(
    study: Path, state: StudyState, keep: Keep = "last", *, stores: bool = False, dry: bool = False
) -> Counter[str]:
    """Remove checkpoints, and `stores` of tokens, of the runs of a study's folder that nobody can go on with, unless
    `dry`; return how many, and bytes. Of attempts before the last training all go. Idempotent. Raises OSError."""
    pruned, concluded = Counter(checkpoints=0, stores=0, bytes=0), state.concluded_reason is not None
    for run in (run for run in state.every_run.values() if run.active is None):
        attempts, still = reversed(run.attempts if concluded or run.status in ("collected", "invalid") else ()), keep
        for folder in (AttemptFolder(attempt_in(study, run.run_id, attempt.number)) for attempt in attempts):
            saved = list(folder.server.glob("checkpoints/*/*step-*"))
            whole = [path for path in saved if still == "last" and re.fullmatch(r"step-\d+", path.name)]
            last = max(whole, key=lambda path: int(path.name[5:]), default=None)
            old = [path for path in saved if keep != "all" and path != last]
            tokens = list(folder.server.glob("store.sqlite3*")) if stores else []
            gone = [*old, *tokens, *(last.rglob("optimizer.safetensors") if last else ())]
            told = {"checkpoints": len(old), "stores": int(bool(tokens)), "bytes": sum(map(size_of, gone))}
            pruned.update(told)
            still = "none" if saved else still
            for path in () if dry else gone:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if gone and not dry:
                write_json(folder.path / "pruned.json", told, durable=False)
    return pruned
