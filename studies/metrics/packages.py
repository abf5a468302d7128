"""Kinds of metrics that installed packages bring: which can be had, and why others cannot.

A package names its kinds in its metadata, `[project.entry-points."ajet.metrics"]` with `NAME = "module:Class"`. One
that is broken is refused where it is asked for, and is in nobody else's way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Final

from studies.metrics.kinds.base import MetricKind, Refused

GROUP: Final = "ajet.metrics"
"""Each a `MetricKind` without arguments; names that ajet has itself are not taken over."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TAKES: Final = ("threshold", "of")


@dataclass(frozen=True, slots=True)
class Packages:
    """What installed packages bring, by the names of their entry points."""

    kinds: Mapping[str, MetricKind]
    faults: Mapping[str, str]
    """A line for each name that cannot be had."""


def brought(entries: Iterable[EntryPoint], own: Collection[str]) -> Packages:
    """Return the kinds of these entry points, whose names are not `own`."""
    named: dict[str, dict[str, EntryPoint]] = {}
    for entry in entries:  # one that is listed twice is one
        named.setdefault(entry.name, {})[f"{_package(entry)} ({entry.value})"] = entry
    kinds: dict[str, MetricKind] = {}
    faults: dict[str, str] = {}
    for name, found in sorted(named.items()):
        try:
            kinds[name] = _kind(name, found, own)
        except Refused as fault:
            faults[name] = str(fault)
    return Packages(kinds, faults)


def _kind(name: str, found: Mapping[str, EntryPoint], own: Collection[str]) -> MetricKind:
    packages = " and ".join(sorted(found))
    if name in own:
        raise Refused(f"expected a name of its own for the metric of {packages}; found {name!r}, ajet's; give another")
    if len(found) > 1:
        raise Refused(f"expected one package that brings the metric {name!r}; found {packages}; remove one of them")
    (entry,) = found.values()
    try:
        loaded = entry.load()
        made = loaded() if callable(loaded) else loaded
    except Exception as error:  # somebody's module may raise anything when it is imported
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Refused(f"expected the metric {name!r} of {packages} to load; found {said}; mend it") from error
    if fault := _fault(name, made):
        raise Refused(f"expected {fault}, of the metric {name!r} of {packages}; mend it")
    assert isinstance(made, MetricKind)
    return made


def _fault(name: str, made: Any) -> str | None:
    """Return what was expected of a kind, and what it has in its place; None for a kind that can be used."""
    if not isinstance(made, MetricKind):
        return f"a MetricKind; found {made!r:.80}"
    said = {field: getattr(made, field, None) for field in ("name", "title", "words", "unit", "takes", "effect")}
    if said["name"] != name or not _NAME.fullmatch(name):
        return f"a `name` like its entry point's, of a-z, 0-9, - and _; found {said['name']!r:.80}"
    if not isinstance(said["title"], str) or not said["title"]:
        return f"a text as `title`; found {said['title']!r:.80}"
    if not isinstance(said["unit"], str):
        return f"a text as `unit`; found {said['unit']!r:.80}"
    if not _texts(said["words"]):
        return f"`words` as a tuple of texts; found {said['words']!r:.80}"
    if not isinstance(said["takes"], Set) or not said["takes"] <= set(_TAKES):
        return f"`takes` as a set of {' and '.join(_TAKES)}; found {said['takes']!r:.80}"
    if not isinstance(said["effect"], int | float) or not 0 < said["effect"] < 1 or math.isnan(said["effect"]):
        return f"`effect` as a share of its range, above 0 and below 1; found {said['effect']!r:.80}"
    return None


def _texts(given: Any) -> bool:
    return isinstance(given, tuple | list) and all(isinstance(word, str) and word.strip() for word in given)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"
