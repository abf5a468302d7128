"""What a run is judged by."""

from studies.metrics.base import Asked, MetricKind, Refused, Results, Value
from studies.metrics.registry import kind_named, kind_of, kinds, other_environment

__all__ = ["Asked", "MetricKind", "Refused", "Results", "Value", "kind_named", "kind_of", "kinds", "other_environment"]
