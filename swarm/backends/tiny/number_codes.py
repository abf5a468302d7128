"""Where the tiny model's numbers begin: on circles of several periods, as pretrained models come to hold them.

Random embeddings know no order, and a model of this size then learns sums by heart instead of adding. With the
value of a number written in sines and cosines (the Fourier features found in pretrained models, arXiv
2406.03445) it generalises to pairs and windows it has not seen. Only the start is set; training may change all.
"""

from __future__ import annotations

import math

import torch

_PERIODS = (2.0, *(4.0 * 100.0 ** (step / 6) for step in range(7)))
"""From parity to a circle of 400, twice the largest number."""
_SCALE = 0.2
_NOISE = 0.1
"""Share of a code that is random, so that no two numbers are bound together."""


def number_codes(numbers: int, width: int) -> torch.Tensor:
    """Return one code per number from 0, (numbers, width), by torch's present random numbers.

    Each is a random projection of (cos, sin)(2 pi n / period) over the periods, with root mean square of about 0.2.
    """
    values_N1 = torch.arange(numbers, dtype=torch.float32)[:, None]
    angles_NP = 2.0 * math.pi * values_N1 / torch.tensor(_PERIODS)
    circles_NF = torch.cat([angles_NP.cos(), angles_NP.sin()], dim=1)
    projection_FD = torch.randn(circles_NF.shape[1], width) / math.sqrt(len(_PERIODS))
    return _SCALE * (circles_NF @ projection_FD + _NOISE * torch.randn(numbers, width))
