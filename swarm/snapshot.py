"""Wire types of watching: a server at a glance, and what finished steps measured.

    GET /snapshot                                     -> Snapshot      (any role)
    GET /history?after=STEP&keys=A,B*&limit=N&newest=BOOL -> HistoryPage (any role)

Both are bounded, whatever runs: of streams, owners and dropped episodes a snapshot names some and counts the rest.
"""

from collections.abc import Mapping

from pydantic import Field

from swarm.wire import Growing, Status


class StepWait(Growing):
    """One thing that the present step waits for."""

    what: str
    """engine, failed, evaluation, room (on a disk, or in the store), episodes, straggler, generation, learning, or
    nothing: the training is finished."""
    text: str
    """The same in words."""
    stream: str | None = None
    """Of `episodes`: whose; None where streams have no shares."""
    count: int | None = None
    """Episodes that are waited for."""
    age_s: float | None = None
    """Of a straggler: seconds since it began."""


class StreamSnapshot(Growing):
    """Where one stream stands."""

    name: str
    share: float | None
    cursor: int
    groups_trained: int
    groups_open: int
    """Groups that are not whole."""
    groups_whole: int
    """Groups that wait for their batch, or are surplus."""
    episodes_open: int
    lacking: int
    """Places of unfinished groups that nobody plays."""


class OwnerSnapshot(Growing):
    """What one client holds."""

    owner: str
    open: int
    """Its open episodes."""
    heard_s: float
    """Seconds since it was last heard of, by a call or a heartbeat for any of them."""
    oldest_s: float
    """Seconds since the first of them began."""


class DropSnapshot(Growing):
    """An episode that was dropped or fenced."""

    at: float
    """Unix time in seconds."""
    episode: str
    stream: str
    owner: str
    reason: str


class Snapshot(Growing):
    """What a server is doing at one moment."""

    at: float
    """Unix time in seconds."""
    status: Status
    environment: str | None = None
    model: str | None = None
    """The job's model in a few words."""
    algorithm: str | None = None
    waits: tuple[StepWait, ...] = ()
    """Why the present step is not done, the most pressing first."""
    seconds_left: float | None = None
    """Until the last step, at the pace of the last ones with all that they waited for; None before there is one."""
    streams: tuple[StreamSnapshot, ...] = ()
    """Those with open episodes or groups first."""
    streams_left_out: int = 0
    owners: tuple[OwnerSnapshot, ...] = ()
    """Clients with open episodes, those with the most first."""
    owners_left_out: int = 0
    line: int = 0
    """Requests for an episode that found no room and wait for it."""
    line_age_s: float | None = None
    """Seconds for which the first of them has waited."""
    sampled_tokens: int = 0
    """Ids sampled in training episodes since the engine was started."""
    sampled_per_s: float | None = None
    trained_per_s: float | None = None
    """Trained tokens of the last step over its seconds."""
    episodes: Mapping[str, int] = Field(default_factory=dict)
    """Since the training began: begun, ended, trained, evaluated, aborted, fenced."""
    drops: Mapping[str, int] = Field(default_factory=dict)
    """Episodes that were dropped or fenced since the training began, by reason."""
    flat: str | None = None
    """Why hardly anything is learned, where the last steps' rewards show it."""
    refusals: Mapping[str, int] = Field(default_factory=dict)
    """Model calls that were refused since the engine was started, by their error's code."""
    refusal: str | None = None
    """What the last of them was told."""
    recent_drops: tuple[DropSnapshot, ...] = ()
    """The last ones, the newest first."""
    side_conversations: int = 0
    """Conversations that began in an episode beside its first one and were trained with its reward, though no agent was
    named: perhaps an agent's side calls (titles, probes)."""
    skipped_tasks: Mapping[str, int] = Field(default_factory=dict)
    """Tasks that were passed over as plays of them failed again and again, the last ones, and how often each."""


def describe_side_conversations(conversations: int) -> str:
    """Return what to do about conversations that are trained with the reward of the one they began beside."""
    if not conversations:
        return ""
    return (
        f"{conversations} conversations began beside the first of their episode and are trained with its reward: if "
        "they are side calls of the agent (titles, probes), name the agents and the job's `train_agents`"
    )


class StepRecord(Growing):
    """What a finished step measured."""

    step: int
    metrics: Mapping[str, float]
    """By the names of trackers; without numbers that are not finite, and for an evaluated step with `eval/...`."""


class HistoryPage(Growing):
    """Finished steps in their order."""

    job_digest: str | None
    """Whose they are, as of `GET /checkpoints`."""
    steps: tuple[StepRecord, ...]
    next: int | None
    """The `after` of the next page; None where there is no more for now."""
