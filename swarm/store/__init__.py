"""Every token, durable."""

from swarm.store.archive import Archive, TrainingSummary, erase_archived
from swarm.store.changes import (
    BatchScheduled,
    CallCaptured,
    CallWithdrawn,
    Change,
    CheckpointEvaluated,
    CheckpointSaved,
    Closing,
    EpisodeClosed,
    EpisodeErased,
    EpisodePrepared,
    StepMeasured,
)
from swarm.store.reading import FINISHED, EpisodeReader, ExportableEpisodes, RecoveredState, Sample
from swarm.store.tables import EpisodeRow, StoredEvent, StreamRow, TaskListRow, best_of
from swarm.store.writer import Store, open_store

__all__ = [
    "FINISHED",
    "Archive",
    "BatchScheduled",
    "CallCaptured",
    "CallWithdrawn",
    "Change",
    "CheckpointEvaluated",
    "CheckpointSaved",
    "Closing",
    "EpisodeClosed",
    "EpisodeErased",
    "EpisodePrepared",
    "EpisodeReader",
    "EpisodeRow",
    "ExportableEpisodes",
    "RecoveredState",
    "Sample",
    "StepMeasured",
    "Store",
    "StoredEvent",
    "StreamRow",
    "TaskListRow",
    "TrainingSummary",
    "best_of",
    "erase_archived",
    "open_store",
]
