"""The planner behind any OpenAI-compatible endpoint: asks, validates, and returns a bad answer with the error.

An action gets three tries (`research.llm_planner.conversation`). What passes (429, a fault of the server, no answer,
nobody there any more) is waited for with growing pauses (`research.llm_planner.patience`), within a share of the time
that a study has left; an endpoint that was never reached is not. Once there are verdicts nothing waits for a model: a
single try, and code concludes without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from research.errors import BadTopic
from research.llm_planner.conversation import PLANNER, ActionConversation
from research.llm_planner.endpoint import Endpoint
from research.llm_planner.patience import PatientEndpoint
from research.planner.digest import Digest
from research.planner.protocol import Check, PlannerTurn
from research.topic import absent
from research.topic.mentions import readable

TRIES = 3
CONCLUSION_TIMEOUT_S = 30.0
"""Longest a conclusion is waited for: the study is over without it."""
PATIENT_SHARE = 0.2
"""Share of the seconds left that a planner's turn may wait for its endpoint: hours, where the study has days."""


class LlmPlanner:
    """Plans by asking a language model."""

    name = PLANNER

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        timeout_s: float = 120.0,
        patience_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`patience_s` is how long a turn may wait for the endpoint; by default it follows from the time left.

        `note` is told of each pause.
        """
        self.model: str | None = model
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._sleep = sleep
        self._note = note
        self._reached = False
        """Whether the endpoint was ever there."""

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        """Return the due action; PlannerFailed if the endpoint fails or no try is acceptable."""
        if not digest.topic.strip():
            raise BadTopic("expected a topic; found an empty one; say in a sentence what is to be studied")
        if digest.inquiry is None:  # later rounds are asked of a topic that was read
            _require_available(digest)
        over = digest.stage == "conclude"
        timeout_s = min(self._timeout_s, CONCLUSION_TIMEOUT_S) if over else self._timeout_s
        # Whoever proposed has answered before, in this process or another.
        reached = self._reached or digest.stage != "propose" or digest.inquiry is not None
        line = PatientEndpoint(
            self._endpoint, timeout_s, self._patience(digest), self._sleep, self._note, reached=reached
        )
        try:
            return ActionConversation(line, str(self.model), digest, check, tries=1 if over else TRIES).take()
        finally:
            self._reached = line.reached

    def _patience(self, digest: Digest) -> float:
        if digest.stage == "conclude":
            return 0.0
        return PATIENT_SHARE * digest.seconds_left if self._patience_s is None else self._patience_s


def _require_available(digest: Digest) -> None:
    """Raise BadTopic for a topic that names what is not here, such as an environment."""
    if (missing := absent.unavailable(readable(digest), [facts.name for facts in digest.environments])) is not None:
        raise BadTopic(missing)
