"""The tasks of a stream as a client knows them: by id, with the digest by which the server knows their list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from pydantic import ValidationError

from swarm.client.episode import TaskT
from swarm.errors import InvalidRequest, wrong_value
from swarm.wire import TaskList, tasks_digest


class StreamTasks(Generic[TaskT]):
    """Tasks in the order in which they are to be played; raises ValueError for none."""

    def __init__(self, stream: str, tasks: Iterable[TaskT]) -> None:
        known = list(tasks)
        if not known:
            raise ValueError("expected at least one task to play, found none")
        self.stream = stream
        self._ids = tuple(task.id for task in known)
        self._of = {task.id: task for task in known}
        self.digest = tasks_digest(self._ids)

    def __getitem__(self, task_id: str) -> TaskT:
        """Return the task of an id; raise InvalidRequest for one that is not among them."""
        if task_id not in self._of:
            raise InvalidRequest(
                f"expected one of the {len(self._of)} tasks of stream {self.stream!r}, found {task_id!r}"
            )
        return self._of[task_id]

    def request(self, *, with_ids: bool) -> TaskList:
        """Return what names the list to the server; without the ids it asks whether they are known there.

        Raises InvalidRequest for a stream or ids that no server can know.
        """
        try:
            return TaskList(
                stream=self.stream, digest=self.digest, count=len(self._ids), ids=self._ids if with_ids else None
            )
        except ValidationError as error:
            raise wrong_value(error) from None
