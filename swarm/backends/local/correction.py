"""The weight of a token that another policy sampled than the one an update begins with.

The policy an update begins with is the *proximal* one, the engine's at sampling time the *rollout* one: what the first
is trusted with (how far an update may go) and what the second is needed for (off-policy correction) are apart, as in
decoupled PPO (Hilton, Cobbe and Schulman, arXiv 2110.00641).
Knows nothing of jobs' other fields, losses or how either log-prob was found.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from swarm.backends.local.losses import LOG_RATIO_BOUND

Correction = Literal["off", "truncate", "mask"]


def probability_ratio(proximal: Tensor, rollout: Tensor) -> Tensor:
    """Return proximal over rollout probability (M,) from log-probs (M,), held within exp(+-20)."""
    return (proximal - rollout).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def correction_weights(ratio: Tensor, correction: Correction, cap: float) -> Tensor:
    """Return the factor (M,) of each token's policy loss, given its probability ratio (M,).

    `truncate`: min(ratio, cap), truncated importance sampling at token level (Ionides 2008; V-trace's rho, arXiv
    1802.01561, equation 1). `mask`: the ratio itself within [1 / cap, cap] and 0 outside (IcePop's double-sided
    mask). `off`: 1.
    """
    match correction:
        case "off":
            return torch.ones_like(ratio)
        case "truncate":
            return ratio.clamp(max=cap)
        case "mask":
            return torch.where((ratio >= 1 / cap) & (ratio <= cap), ratio, 0.0)
