"""The guard that stops a training whose learner and engine disagree about the same weights.

Promises: an update that cannot be judged (hardly a token of it was sampled by the weights it began with, as happens
where rollout and update overlap) neither counts nor excuses; the count goes through a checkpoint as one number.
Knows nothing of models: it is told each update's error.
"""

from __future__ import annotations

from swarm.backends.protocols import BackendError

PATIENCE = 3
"""Updates in a row above the limit that stop a training: one may be a freak."""
FEWEST = 32
"""Tokens without which an update is not judged: in bfloat16 single ones may well be above the limit."""


class MismatchGuard:
    """Counts the updates in a row whose error was above `limit`."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._above = 0

    @property
    def state(self) -> int:
        """What `restore` needs to go on counting."""
        return self._above

    def restore(self, state: int) -> None:
        """Go on counting from a saved `state`."""
        self._above = state

    def check(self, error: float, tokens: int) -> None:
        """Take note of an update's `token_mult_prob_error`, a mean over `tokens`; BackendError when it is enough."""
        if tokens < FEWEST:
            return
        self._above = self._above + 1 if error > self._limit else 0
        if self._above >= PATIENCE:
            raise BackendError(
                f"learner and engine disagree about tokens sampled by the weights this update began with: the mean of "
                f"exp |difference of log-probs| is {error:.4g}, above the job's mismatch_limit of {self._limit:g} for "
                f"{self._above} updates in a row. Look at what makes the engine compute otherwise than the learner "
                f"(dtype, temperature or a cut of the distribution, keys and values of older weights, another "
                f"attention implementation); raise mismatch_limit only if so much is expected"
            )
