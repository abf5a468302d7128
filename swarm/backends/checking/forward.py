"""Which forward serves and which layout learns, with the reason where the fast one is lost; how near both are.

The reason is the one that the backend says in its own log when it loads a model.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.backends.local.generating.eager_check import Gap, logprob_gap
from swarm.backends.local.generating.generation import Generation, SampledToken
from swarm.backends.local.learning.layout import obstacle
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import Chunk, Sampling
from swarm.job import Job


def fused_lost(policy: Policy) -> str | None:
    """Return why the engine has no fused forward, None where it has."""
    if policy.fused:
        return None
    return policy.unfused or "the engine did not say why"


def trees_lost(policy: Policy, job: Job) -> str | None:
    """Return why rows are not learned as trees, None where they are."""
    if job.merging in ("linear", "none"):
        return f"the job's merging is `{job.merging}`"
    return obstacle(policy)


def answers_gap(policy: Policy, sampling: Sampling, answers: Sequence[tuple[Sequence[int], Sequence[Chunk]]]) -> Gap:
    """Return the most by which the engine's log-probs of answers differ from a plain forward by eager attention.

    answers: prompt ids with the chunks that the engine gave for them; nobody else may run the model meanwhile.
    """
    return logprob_gap(policy, [_generation(prompt, sampling, chunks) for prompt, chunks in answers])


def _generation(prompt: Sequence[int], sampling: Sampling, chunks: Sequence[Chunk]) -> Generation:
    generation = Generation([*prompt], sampling)
    for chunk in chunks:
        tops = chunk.top or ((),) * len(chunk.ids)
        drawn = zip(chunk.ids, chunk.logprobs, tops, strict=True)
        generation.fresh += [SampledToken(token, logprob, chunk.version, top) for token, logprob, top in drawn]
        generation.ids += chunk.ids
    return generation
