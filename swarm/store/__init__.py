"""The store: every served token, lease, reward and step of a training, durable before it is acknowledged."""

from swarm.store.archive import Archive
from swarm.store.fake import FakeStore
from swarm.store.records import (
    Began,
    Captured,
    Change,
    Closed,
    Closing,
    Consumed,
    Episodes,
    Event,
    InStep,
    Prepared,
    Recovered,
    Sample,
    Store,
    StreamMoved,
    TasksListed,
    Withdrawn,
)
from swarm.store.sql import SqlStore, open_store

__all__ = [
    "Archive",
    "Began",
    "Captured",
    "Change",
    "Closed",
    "Closing",
    "Consumed",
    "Episodes",
    "Event",
    "FakeStore",
    "InStep",
    "Prepared",
    "Recovered",
    "Sample",
    "SqlStore",
    "Store",
    "StreamMoved",
    "TasksListed",
    "Withdrawn",
    "open_store",
]
