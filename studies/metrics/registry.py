"""Which kinds of metric there are: those of this package, and those that installed packages bring (`ajet.metrics`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final

from studies.metrics.kinds.area import Area
from studies.metrics.kinds.base import MetricKind, Refused
from studies.metrics.kinds.collapse import Collapse
from studies.metrics.kinds.fact import MeanFact
from studies.metrics.kinds.gain import Gain
from studies.metrics.kinds.reward import MeanReward
from studies.metrics.kinds.success import Success
from studies.metrics.kinds.times import EpisodesTo, SecondsTo
from studies.metrics.kinds.tokens import TokensPerTask
from studies.metrics.kinds.transfer import Transfer
from studies.metrics.packages import GROUP, Packages, brought
from studies.records.design import GAIN, Metric

_KINDS: Final = (Success, Gain, MeanReward, Area, EpisodesTo, SecondsTo, TokensPerTask, Transfer, Collapse, MeanFact)
BUILT_IN: Final[Mapping[str, MetricKind]] = MappingProxyType({kind.name: kind() for kind in _KINDS})


@cache
def kinds() -> Mapping[str, MetricKind]:
    """Return all kinds by name; of packages' those that can be had."""
    return MappingProxyType({**BUILT_IN, **_brought().kinds})


def faults() -> Mapping[str, str]:
    """Return a line for each name of a package's kind that cannot be had."""
    return _brought().faults


def kind_named(name: str) -> MetricKind:
    """Return the kind of a name; raise Refused for one that there is not, or that cannot be had."""
    known = kinds()
    if name in known:
        return known[name]
    if (fault := faults().get(name)) is not None:
        raise Refused(fault)
    raise Refused(f"expected a metric ({', '.join(known)}); found {name!r}; see `ajet metric list`")


def kind_of(metric: Metric) -> MetricKind:
    """Return the kind of a design's metric; raise Refused where the package that brought it is gone.

    Designs that knew success and its gain alone name none.
    """
    gain = metric.key.endswith(GAIN.partition("/")[2])
    return kind_named(metric.kind or (Gain.name if gain else Success.name))


def other_environment(metric: Metric) -> str | None:
    """Return the environment that a metric is of besides the run's own; None where it is of none."""
    return metric.of if kind_of(metric).of_environment else None


def _brought() -> Packages:
    return brought(entry_points(group=GROUP), BUILT_IN)
