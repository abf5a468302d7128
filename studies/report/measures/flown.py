"""The kinds of metric whose error rates were measured over simulated studies (docs/calibration.md): add one there and
here together."""

from __future__ import annotations

from typing import Final

from studies.records.design import Metric

FLOWN: Final = frozenset({"", "success", "gain", "area", "episodes", "seconds", "collapse"})
"""Kinds by name; the empty one is of designs that knew success and its gain alone."""


def flown(metric: Metric) -> bool:
    """Return whether somebody measured how often a verdict on this kind of metric is wrong."""
    return metric.kind in FLOWN
