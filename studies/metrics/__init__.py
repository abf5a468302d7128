"""What a study can ask of its runs: one registry of metrics, a module for each kind.

May enter: what reads one number off the stored files of a run, and what a metric is told by. Not statistics of several
runs (`studies.statistics`), nor what follows from them (`studies.verdicts`).
"""

from studies.metrics.kinds.base import Asked, MetricKind, Refused, Results, Value
from studies.metrics.registry import kind_named, kind_of, kinds, other_environment

__all__ = ["Asked", "MetricKind", "Refused", "Results", "Value", "kind_named", "kind_of", "kinds", "other_environment"]
