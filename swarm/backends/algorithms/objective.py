"""What a micro-batch of sampled tokens contributes to an optimiser step's loss, and what is measured on the way.

Three policies meet in it: the *present* one, which is differentiated; the *rollout* one, which sampled; and between
them the *proximal* one, which the clip compares the present one with: that of the weights the update began with.
Promises: a loss is a sum over tokens, so that micro-batches add up to their minibatch whatever the layout; each
formula stands, with its source, in the functions used here, and `docs/algorithms.md` puts them together.
Knows nothing of models, rows or optimisers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.backends.algorithms import losses
from swarm.backends.algorithms.losses import correction_weights, probability_ratio
from swarm.backends.algorithms.metrics import UpdateSums
from swarm.backends.algorithms.rows import Tokens
from swarm.job import Job


class Objective:
    """A job's loss. `loss` is called for each micro-batch, with the sums of the update that it adds to."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._several = job.epochs * job.minibatches > 1
        self._off = job.rollout_correction == "off"
        self._sequences = job.algorithm == "gspo"

    def needs_proximal(self, *, stale: bool) -> bool:
        """Whether an update must begin with a pass that computes `Tokens.proximal`; `stale`: it has older tokens.

        A single optimiser step has it for nothing, and where every token is of the update's own version the engine's
        log-probs are of the same weights.
        """
        return self._several and not self._off and stale

    @property
    def needs_sequences(self) -> bool:
        """Whether a minibatch of several micro-batches must begin with a pass that fills `Tokens.sequence`.

        In a single optimiser step the present policy is the proximal one, and every sequence's ratio is 1.
        """
        return self._sequences and (self._several or self._off)

    def sequences(self, parts: Sequence[tuple[Tensor, Tokens]]) -> list[Tensor]:
        """Return `Tokens.sequence` of each micro-batch of a minibatch.

        parts: for each of them the log-probs (M,) of its tokens under the present weights, and the tokens.
        """
        ratios = [present.detach() - self.proximal(present, tokens) for present, tokens in parts]
        means = losses.episode_means(torch.cat(ratios), torch.cat([tokens.episodes for _, tokens in parts]))
        return list(means.split([len(ratio) for ratio in ratios]))

    def loss(self, every: Tensor, tokens: Tokens, reference: Tensor | None, sums: UpdateSums) -> Tensor:
        """Return the share () of M tokens in the loss of their minibatch.

        every (M, V): log-probs under the present weights, at the job's temperature, with gradient. reference (M,): of
        the sampled tokens under the frozen reference; None where the job has no KL. Where `Tokens.sequence` is needed
        and missing, all tokens of each episode must be among these.
        """
        present = every.gather(-1, tokens.targets[:, None])[:, 0]
        loss = self._policy_loss(present, tokens, sums)
        with torch.set_grad_enabled(self._job.entropy_coef > 0 and torch.is_grad_enabled()):
            entropy = losses.entropy(every)
        return self.with_bonuses(loss, present, entropy, tokens, reference, sums)

    def token_loss(
        self, present: Tensor, entropy: Tensor, tokens: Tokens, reference: Tensor | None, sums: UpdateSums
    ) -> Tensor:
        """Return what `loss` does, for whoever has no (M, V).

        present, entropy (M,): log-probs of the targets, and entropy at their places, under the present weights at the
        job's temperature, with gradient.
        """
        loss = self._policy_loss(present, tokens, sums)
        entropy = entropy if self._job.entropy_coef > 0 else entropy.detach()
        return self.with_bonuses(loss, present, entropy, tokens, reference, sums)

    def with_bonuses(
        self,
        loss: Tensor,
        present: Tensor,
        entropy: Tensor,
        tokens: Tokens,
        reference: Tensor | None,
        sums: UpdateSums,
    ) -> Tensor:
        """Return the policy's `loss` () with entropy bonus and KL penalty; the arguments are those of `token_loss`."""
        job = self._job
        with torch.set_grad_enabled(job.entropy_coef > 0 and torch.is_grad_enabled()):
            bonus = (tokens.weights * entropy).sum()
        if job.entropy_coef > 0:
            loss = loss - job.entropy_coef * bonus
        if reference is not None:
            divergence = (tokens.weights * losses.divergence(present, reference, job.kl_estimator)).sum()
            loss = loss + job.kl_coef * divergence
            sums.add(kl_loss=divergence)
        sums.add(entropy=bonus)
        return loss

    def _policy_loss(self, present: Tensor, tokens: Tokens, sums: UpdateSums) -> Tensor:
        job, proximal = self._job, self.proximal(present, tokens)
        high = job.clip_ratio if job.clip_ratio_high is None else job.clip_ratio_high
        terms = losses.clipped(
            self._log_ratio(present, proximal, tokens), tokens.advantages, job.clip_ratio, high, job.dual_clip
        )
        correction = self.correction(proximal, tokens)
        loss = (tokens.weights * correction * terms.loss).sum()
        sums.add(pg_loss=loss)
        sums.add_tokens(tokens, present, proximal, terms, correction)
        return loss

    def correction(self, proximal: Tensor, tokens: Tokens) -> Tensor:
        """Return the off-policy factor (M,) of each token's policy loss: the tokens' own where they have one."""
        if tokens.correction is not None:
            return tokens.correction if tokens.kept is None else tokens.correction * tokens.kept
        ratio = probability_ratio(proximal, tokens.rollout)
        return correction_weights(ratio, self._job.rollout_correction, self._job.correction_cap)

    def proximal(self, present: Tensor, tokens: Tokens) -> Tensor:
        """Return the proximal log-probs (M,), without gradient: see `docs/algorithms.md`, off-policy correction."""
        if self._off:
            return tokens.rollout
        if not self._several:
            return present.detach()
        return tokens.rollout if tokens.proximal is None else tokens.proximal

    def _log_ratio(self, present: Tensor, proximal: Tensor, tokens: Tokens) -> Tensor:
        if not self._sequences:
            return losses.token_log_ratio(present, proximal)
        mean = tokens.sequence
        if mean is None:
            mean = losses.episode_means(present.detach() - proximal, tokens.episodes)
        return losses.sequence_log_ratio(present, mean)
