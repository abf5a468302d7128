"""Statistics: pure functions from numbers to estimates, intervals and verdicts.

`judge` is the plain rule of old designs; `studies.statistics.verdict.judge` is the rule of any design.
"""

from studies.statistics.calibration import Calibration, brier, calibration
from studies.statistics.plain import inputs_hash, judge
from studies.statistics.rates import RateDifference, rate_difference, rate_interval
from studies.statistics.samples import Interval, hedges_g, mean_interval, spread

__all__ = [
    "Calibration", "Interval", "RateDifference", "brier", "calibration", "hedges_g", "inputs_hash", "judge",
    "mean_interval", "rate_difference", "rate_interval", "spread",
]  # fmt: skip
