"""The control plane's wire types, shared by server and client: frozen and validated.

Which route takes and gives which is in `swarm.server.routes`, and `GET /openapi.json` of a server tells it. Keys
travel as `Authorization: Bearer KEY`.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Growing(_Wire):
    """What servers learn to say more of; a reader takes no notice of what it does not know."""

    model_config = ConfigDict(extra="ignore")


class ServerState(StrEnum):
    """The server's life."""

    OFFLINE = "OFFLINE"
    BOOTING = "BOOTING"
    ROLLING = "ROLLING"
    ROLLING_POST = "ROLLING_POST"
    WEIGHT_SYNCING = "WEIGHT_SYNCING"
    FAILED = "FAILED"


EpisodeKind = Literal["train", "eval"]


class Stillness(_Wire):
    """What a training with a learning rate of 0 did to the weights, which must be nothing."""

    before: str | None = None
    """sha256 of all weights before the first step, an adapter's included; None where the backend cannot say."""
    after: str | None = None
    """The same after the last step."""
    probs_tolerance: float | None = None
    """Most by which the backend's engine and learner may differ on the probability of a sampled token; None where it
    does not compare them."""


class EvaluationSummary(Growing):
    """What the weights of a step were worth in the evaluation that training waited for (a job's `eval_every`)."""

    step: int
    episodes: int
    reward: float
    """Mean over these episodes."""
    success: float | None = None
    """Share of them that succeeded; None unless all of them said whether they did."""


class Status(Growing):
    """What a server is doing now.

    A client takes no notice of what it does not know: a study keeps its client image, and servers learn to say more.
    """

    state: ServerState
    reason: str | None = None
    """Why the server FAILED; None in every other state."""
    waiting: str | None = None
    """What the present step waits for though nothing is broken, such as room on a disk for the store or a checkpoint,
    or an evaluation of the weights that serve; None else."""
    fresh_start: str | None = None
    """Where this training began at step 0 in this life of the server though other jobs' checkpoints lie beside it: a
    line that names them, and in what their jobs differ."""
    not_finite: bool = False
    """Whether it FAILED because loss or gradient was no finite number: the training broke down, not the server."""
    provenance: Mapping[str, str] = Field(default_factory=dict)
    """sha256 of what the training began with: `weights`, `template`; and the kind of `device`, where the backend says
    it. Empty before it serves, and where nothing is loaded."""
    machine: str | None = None
    """Platform, cores and memory of the server's machine; None while no engine is on."""
    boot: str | None = None
    """Names this boot of the engine: another name later means that the server, or its engine, was started again."""
    job_digest: str | None = None
    """Digest of the loaded job, None before one is loaded. A client that finds another one than its own job's asks for
    the job: two may mean the same (`swarm.canonical`)."""
    group_size: int | None = None
    """Episodes a client plays per task in the loaded job."""
    step: int = 0
    """Training steps done."""
    steps: int | None = None
    """Training steps the job asks for."""
    finished: bool = False
    """True once the last step is done: evaluation goes on, training episodes are refused (`job_finished`)."""
    policy_version: int = 0
    """Version of the weights that serve now; grows by one per step."""
    updating: bool = False
    """A batch is being learned, or its checkpoint saved. With a `max_staleness` of 1 or more the state stays ROLLING
    meanwhile, and episodes go on."""
    open_episodes: int = 0
    collected_episodes: int = 0
    """Ended training episodes waiting for the present step's batch."""
    needed_episodes: int = 0
    """Episodes the present step's batch takes."""
    awaited_evaluations: int = 0
    """Evaluation episodes of `policy_version` that training waits for (a job's `evaluate_after` or `eval_every`): those
    that have not ended in the evaluation, of one client, that is the furthest."""
    evaluation_episodes: int = 0
    """How many a whole evaluation has while training waits for one."""
    evaluation: EvaluationSummary | None = None
    """The last evaluation of a job's `eval_every`; None before there is one."""
    best: EvaluationSummary | None = None
    """The best of these, whose checkpoint is kept. It was chosen for its score, so the score is optimistic."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """Metrics of the last finished step, by verl's names (`critic/rewards/mean`, ...)."""
    stillness: Stillness | None = None
    """What a training with a learning rate of 0 came to, once it is finished; None for any other."""


TaskId = Annotated[str, Field(min_length=1, max_length=512)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class BeginRequest(_Wire):
    """Ask for a lease on one episode: of the task that is named, or of the next one of the stream's task list."""

    tasks: Digest | None = None
    """Instead of a `task_id`: digest of the stream's task list (`TaskList`), of which the server chooses the next
    place, first what was begun and not brought to its end, then the next task of the pass. The lease names the task."""
    task_id: TaskId | None = Field(default=None, validate_default=True)
    stream: str = Field(default="default", min_length=1, max_length=128)
    kind: EpisodeKind = "train"
    owner: str = Field(default="anonymous", max_length=128)
    """Who asks; shown in status and logs."""
    wait_s: float = Field(default=0.0, ge=0, le=60)
    """Seconds the server may hold the request until there is room, before it answers 429."""
    timeout_s: float | None = Field(default=None, gt=0, le=604_800)
    """Seconds the episode may take. A full batch that waits for it does so for as long at most, and only while its
    client is heard of. None (default): heartbeats alone keep it for 600 s after its last model call."""
    code: Digest | None = None
    """sha256 of the files of the agent that plays it."""

    @field_validator("task_id")
    @classmethod
    def _check_task_id(cls, task_id: str | None, info: ValidationInfo) -> str | None:
        if (task_id is None) == (info.data.get("tasks") is None) and "tasks" in info.data:
            found = "neither" if task_id is None else "both"
            raise ValueError(f"expected `task_id`, or `tasks` to leave the task to the server; found {found}")
        return task_id

    @field_validator("kind")
    @classmethod
    def _check_kind(cls, kind: EpisodeKind, info: ValidationInfo) -> EpisodeKind:
        if kind != "train" and info.data.get("tasks") is not None:
            raise ValueError("expected a `task_id` for an evaluation: only training streams have places to hand out")
        return kind


EVALUATION_STREAM = "evaluation"
"""The stream under which evaluation episodes are shown; they are in no batch."""


class Lease(_Wire):
    """The right to play one episode, until it ends or its time runs out."""

    episode_id: str
    epoch: int
    """Fencing number: a holder of an older epoch gets 409."""
    task_id: str
    kind: EpisodeKind
    api_key: str
    """Key for the model calls of this episode, and for nothing else."""
    lease_token: str
    """Key for this episode's heartbeat, end and abort, and for nothing else."""
    base_url: str
    """OpenAI-compatible address for the agent, ending in /v1."""
    model: str
    """Model name to send in calls."""
    ttl_s: float
    """Seconds without a call or heartbeat after which the episode may be fenced (four times as long before the first):
    the job's `lease_ttl_s`, or its `drain_timeout_s` where that is less. A client sends three heartbeats in it."""
    policy_version: int


Reward = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]


class EndRequest(_Wire):
    """End an episode with its reward."""

    reward: Reward
    """What is trained on; within bounds that leave the learner's fp32 sums finite."""
    success: bool | None = None
    """Whether the task was solved; logged, never trained on."""
    weight: float = Field(default=1.0, ge=0, le=1e6, allow_inf_nan=False)
    """How much the episode counts in the loss, beside others that count 1."""
    by_call: Mapping[Annotated[int, Field(ge=0)], Reward] = Field(default_factory=dict)
    """What single calls are worth, by their numbers (`CallRecord.index`): from 0, in the order in which they ended."""
    by_agent: Mapping[str, Reward] = Field(default_factory=dict)
    """What calls of an agent are worth, by the name they said (header or key), unless `by_call` says otherwise. All
    other calls are worth `reward`."""


class AwaitedAdvantages(Growing):
    """The batch with which training waits for the advantages of its episodes (a job's `external_advantages`)."""

    batch: str = ""
    """Its name; empty where training waits for none."""
    rewards: tuple[float, ...] = ()
    """What its episodes are worth, in the learner's order, without those of weight 0."""
    groups: tuple[int, ...] = ()
    """Which group each of them is of; groups are numbered from 0."""


class GivenAdvantages(_Wire):
    """The advantages of a batch's episodes."""

    batch: str = Field(min_length=1, max_length=64)
    advantages: tuple[Reward, ...] = Field(max_length=1_000_000)
    """One for each episode, in the order of its rewards."""


class PrepareRequest(EndRequest):
    """End an episode of a team, subject to the team's common decision."""

    decider: str | None = Field(default=None, max_length=2000)
    """Address of the episode whose outcome decides for the team (`URL/episodes/ID`); None for that one itself."""
    decider_token: str | None = Field(default=None, max_length=4000)
    """Lease token of the deciding episode, with which its outcome can be asked for."""


class AbortRequest(_Wire):
    """Give an episode up: nothing of it is trained, and its slot is free again."""

    reason: str = Field(default="", max_length=2000)


class Ack(_Wire):
    """The call took effect (or had before: end, abort, prepare, commit and heartbeat are idempotent)."""

    episode_id: str
    state: Literal["open", "prepared", "ended", "dropped", "aborted", "fenced"]


class EndAck(Ack):
    """The answer to the end of an episode.

    `dropped`, with its reason: it ended, and nothing of it can be trained (it made no calls, the job is finished).
    """

    reason: str | None = None
    tokens: int | None = None
    """Tokens that the policy sampled in the episode; None where the server does not know any more."""
    refused: int = Field(default=0, exclude_if=lambda value: not value)
    """Model calls of the episode that were refused."""
    refusal: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the last of them was told."""


BUNDLE = "/bundle"
MOST_BUNDLED = 64
"""Requests that one bundle may have."""


class BundledRequest(_Wire):
    """One POST of a bundle: `/episodes`, an episode's end, or a chat completion that is not streamed."""

    path: str = Field(max_length=512)
    key: str | None = Field(default=None, max_length=4000)
    """Key of a call or an end. A begin has none: it comes by the bundle's own, which is a role's then."""
    body: Mapping[str, Any]


class Bundle(_Wire):
    """Requests that are sent as one. Each is judged, takes effect and is answered as if it had come alone: by a line of
    JSON, once it is done, with its place `at`, its `status`, its `body`, and `retry_after` where a header would say."""

    requests: tuple[BundledRequest, ...] = Field(min_length=1, max_length=MOST_BUNDLED)


class SharesRequest(_Wire):
    """Give streams new shares, from the next group admitted."""

    shares: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(min_length=1)


class TaskList(_Wire):
    """Name the tasks of a stream, of which the server then hands out places. A stream has one list, for ever."""

    stream: str = Field(default="default", min_length=1, max_length=128)
    digest: Digest
    """`tasks_digest` of the ids: the same for every order of them. The server keeps the order that came first."""
    count: int = Field(ge=1, le=10_000_000)
    ids: tuple[TaskId, ...] | None = Field(default=None, min_length=1)
    """The ids, in the order in which they are played; None asks whether the server has them already."""


class TaskListKnown(_Wire):
    """Whether the server has the stream's task list, so that episodes may be begun of it."""

    stream: str
    known: bool
    """False: send the list again with its ids."""


ReleaseReason = Literal["owner_died", "code_changed"]
"""Its process is gone, or its agent's code was replaced."""


class ReleaseRequest(_Wire):
    """Give the open episodes of a client that is over up, by its secret."""

    secret: str = Field(min_length=32, max_length=128)
    reason: ReleaseReason = "owner_died"
    """Why they are given up."""


class Released(_Wire):
    """How many episodes were open, and are fenced now."""

    episodes: int


MOST_ERASED = 256
"""Episodes that one request may erase."""


class EraseRequest(_Wire):
    """Delete what was sampled and read in episodes of one owner, who is known by the secret behind its name's mark."""

    secret: str = Field(min_length=32, max_length=128)
    episodes: tuple[str, ...] = Field(min_length=1, max_length=MOST_ERASED)


class Erasure(_Wire):
    """What became of each episode that was to be erased."""

    erased: tuple[str, ...]
    """Their tokens are gone; what was open is aborted, what waited for its batch dropped (`drop_erased`)."""
    left: tuple[str, ...]
    """They stay for now: their batch is being learned, and has to be learned again after a crash until the next
    checkpoint holds it; or their team is undecided. Ask again."""
    unknown: tuple[str, ...]
    """No episodes of this owner in any training of this server."""


class StreamStatus(Growing):
    """Where one stream stands; a client takes no notice of what it does not know."""

    name: str
    share: float | None
    """Its part of each batch, between 0 and 1; None where the job gives no shares."""
    cursor: int
    """Groups of this stream that were played to their end; a restarted client goes on with the task at this place."""
    groups_open: int
    """Groups of the present step."""
    groups_trained: int
    unfinished: Mapping[str, int] = Field(default_factory=dict)
    """Tasks whose group lacks members and has none in play, and how many places: a restarted client begins there."""


class StreamList(_Wire):
    """All streams the server knows."""

    streams: tuple[StreamStatus, ...]


class CheckpointSummary(_Wire):
    """One checkpoint that is kept."""

    name: str
    step: int
    """Training steps its weights hold."""
    size_bytes: int
    """What its files hold on disk."""


class CheckpointList(Growing):
    """The kept checkpoints of one training, the newest first."""

    job_digest: str | None
    """Whose they are: the loaded job's, else the newest training's; None where nothing was trained yet."""
    checkpoints: tuple[CheckpointSummary, ...]
    best: EvaluationSummary | None = None
    """The evaluation (`eval_every`) for which the checkpoint of its step is kept."""


class ServerFile(Growing):
    """A file that a server hands out: of a checkpoint, or a tracker's log."""

    path: str
    """From the server's folder on: `checkpoints/...` or `tracking/...`."""
    bytes: int


class FileList(Growing):
    """The files below a folder of a server, by their paths."""

    files: tuple[ServerFile, ...]


class KeyRequest(_Wire):
    """Asks for a key of a role."""

    role: Literal["client", "viewer"]


class RoleKey(Growing):
    """A key of a role, signed by the server."""

    key: str


FILE_HASH: Final = "X-Ajet-Sha256"
"""Header of a file that is handed out: its sha256 in hex."""
EpisodeState = Literal["open", "prepared", "ended", "in_step", "consumed", "aborted", "fenced", "dropped"]


class EpisodeSummary(_Wire):
    """One episode in a list."""

    id: str
    task_id: str
    stream: str
    kind: EpisodeKind
    owner: str
    state: EpisodeState
    reason: str | None = None
    """Why it was dropped, fenced or aborted."""
    group: str | None = None
    step: int | None = None
    """The step that trained it."""
    reward: float | None = None
    success: bool | None = None
    calls: int
    tokens: int
    """Sampled tokens."""
    code: str | None = None
    """sha256 of the files of the agent that played it; None where its client did not say."""
    refusals: Mapping[str, int] = Field(default_factory=dict)
    """Model calls that were refused since the server was started, by their error's code."""
    refusal: str | None = None
    """What the last of them was told."""


class EpisodeList(_Wire):
    """The newest episodes first."""

    episodes: tuple[EpisodeSummary, ...]


EXPORT_HEADER = "X-Ajet-Export"


class ExportCounts(Growing):
    """What becomes of the episodes of an export, as `X-Ajet-Export` tells it beside its lines."""

    episodes: int = 0
    """Listed for it. Lines that are missing are those of open ones without a token, or given up meanwhile."""
    pruned: int = 0
    """Left out: their tokens went with old checkpoints."""
    no_tokens: int = 0
    """Left out: nothing was sampled in them."""


class TokenSpan(_Wire):
    """Ids of one call that the engine was shown, or that it sampled; `texts[i]` is what `ids[i]` decodes to.

    The texts joined are the text of the span: where a character's bytes are spread over several ids, the last of
    them has the character and the others have "". `texts` is empty where no renderer was at hand.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    logprobs: tuple[float, ...] = ()
    """Natural log-probs where sampled, else empty."""
    versions: tuple[int, ...] = ()
    """Policy versions where sampled, else empty."""
    special: tuple[int, ...] = ()
    """Places of special tokens (turn marks, end marks), where texts are known."""


class CallRecord(_Wire):
    """One call of an episode: what was new in its prompt, then what was sampled."""

    index: int
    parent: int | None
    """Index of the call it continues."""
    drift: str
    """start, clean, realign or fork (`docs/timelines.md`)."""
    context: TokenSpan
    sampled: TokenSpan
    trained: bool = True
    """Its sampled ids are; those of a call that was asked for with `train` false are context alone."""
    truncated: bool | None = None
    """The answer was cut short (a token limit, a stop string); None where no renderer was at hand to tell."""
    reward: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the call is worth; absent where no call of its episode has a reward of its own."""
    agent: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The agent that made it, as it said; absent where it did not."""


class EpisodeRecord(EpisodeSummary):
    """One episode with every token."""

    record: tuple[CallRecord, ...]


def tasks_digest(ids: Iterable[str]) -> str:
    """Return the sha256, in hex, of task ids whatever their order; how often each occurs counts."""
    digest = hashlib.sha256()
    for id in sorted(ids):
        encoded = _encode(id)
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.hexdigest()


def stream_label(stream: str) -> str:
    """Return the name of a stream as it stands in names of metrics (`stream/LABEL/reward/mean`).

    Letters, digits and `._-`; a part of its hash after `+` where it has others, or more than 64: two streams never have
    the same.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", stream)[:64]
    return plain if plain == stream else f"{plain}+{hashlib.sha256(_encode(stream)).hexdigest()[:6]}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def fingerprint(secret: str) -> str:
    """Return what the owner's name of a client ends with that can prove who it is: 16 hex digits of its secret."""
    return hashlib.sha256(f"ajet-owner:{secret}".encode()).hexdigest()[:16]
