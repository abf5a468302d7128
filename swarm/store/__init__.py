"""The store: every served token, lease, reward and step of a training, durable before it is acknowledged.

May enter: how a training is written and read as a whole. Tables and rows go to `tables`, what depends on the kind of
database to `databases`.
"""

from swarm.store.archive import Archive
from swarm.store.erasing import erase_archived
from swarm.store.fake import FakeStore
from swarm.store.outline import Outline
from swarm.store.sql import SqlStore, open_store
from swarm.store.tables.checkpoints import best_of
from swarm.store.tables.records import (
    FINISHED,
    Began,
    Captured,
    Change,
    Closed,
    Closing,
    Consumed,
    Episodes,
    Erased,
    Evaluated,
    InStep,
    Kept,
    Measured,
    Prepared,
    Recovered,
    Sample,
    Store,
    StoredEvent,
    StreamMoved,
    TasksListed,
    Withdrawn,
)

__all__ = [
    "FINISHED",
    "Archive",
    "Began",
    "Captured",
    "Change",
    "Closed",
    "Closing",
    "Consumed",
    "Episodes",
    "Erased",
    "Evaluated",
    "FakeStore",
    "InStep",
    "Kept",
    "Measured",
    "Outline",
    "Prepared",
    "Recovered",
    "Sample",
    "SqlStore",
    "Store",
    "StoredEvent",
    "StreamMoved",
    "TasksListed",
    "Withdrawn",
    "best_of",
    "erase_archived",
    "open_store",
]
