"""Statistics: pure functions from numbers to estimates, intervals and verdicts."""

from studies.statistics.calibration import brier
from studies.statistics.plain import inputs_hash, judge
from studies.statistics.samples import Interval, hedges_g, mean_interval, spread

__all__ = ["Interval", "brier", "hedges_g", "inputs_hash", "judge", "mean_interval", "spread"]
