"""A metric as somebody asks for it: a kind by its name, with a threshold or with what it is of.

`episodes:0.7` are the training episodes to 0.7 hidden success, `fact:guesses` a fact of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from research.errors import BadMetric
from research.spelling import did_you_mean
from studies.metrics import MetricKind, Refused, kind_named, kinds
from studies.metrics.registry import faults

_KEY = "metric"
_EXAMPLES: Final = {"tokens": "200", "transfer": "arith"}


@dataclass(frozen=True, slots=True)
class AskedMetric:
    """A kind of metric with its parameters."""

    kind: str
    threshold: float | None = None
    of: str = ""
    """The fact, or the other environment."""
    words: str = ""
    """The words of a topic that chose it; empty where it was named."""

    @classmethod
    def named(cls, text: str) -> Self:
        """Return the metric that a flag names, `NAME`, `NAME:THRESHOLD` or `NAME:OF`; raise BadMetric."""
        name, colon, rest = text.strip().partition(":")
        takes = known_kind(name).takes
        if colon and not takes:
            raise BadMetric(f"expected {name} alone, which takes nothing more; found {text!r}; leave :{rest} out")
        if colon and not rest.strip():
            raise BadMetric(f"expected {_form(name, takes)}; found {text!r}; write what belongs behind the colon")
        if "of" in takes:
            of, threshold = _of_and_threshold(rest) if "threshold" in takes else (rest.strip(), None)
            return cls(name, threshold, of)
        return cls(name, _threshold(rest, _form(name, takes)) if colon else None)

    @classmethod
    def in_settings(cls, settings: Mapping[str, Any]) -> Self | None:
        """Return the metric that a study's settings hold; None where nobody asked for one."""
        held = settings.get(_KEY)
        if held is None:
            return None
        return cls(held["kind"], held.get("threshold"), held.get("of", ""), held.get("words", ""))

    def settings(self) -> dict[str, Any]:
        """Return it as a study's settings hold it."""
        held = {"kind": self.kind, "threshold": self.threshold, "of": self.of, "words": self.words}
        return {_KEY: {name: value for name, value in held.items() if value not in (None, "")}}

    @property
    def text(self) -> str:
        """What `--metric` takes: `episodes:0.7`."""
        parts = (self.kind, self.of, "" if self.threshold is None else f"{self.threshold:g}")
        return ":".join(filter(None, parts))


def known_kind(name: str) -> MetricKind:
    """Return the kind of a name; raise BadMetric for a name that there is not, or that of a broken package."""
    known = kinds()
    if name not in known and name not in faults():
        near = did_you_mean(name, known) or f"; they are {', '.join(known)}"
        raise BadMetric(f"expected a metric; found {name!r}{near} (`ajet metric list` says what each is)")
    try:
        return kind_named(name)
    except Refused as error:
        raise BadMetric(str(error)) from error


def form(kind: MetricKind) -> str:
    """Return how a kind is asked for: `episodes:THRESHOLD`."""
    return f"{kind.name}{':NAME' if 'of' in kind.takes else ''}{':THRESHOLD' if 'threshold' in kind.takes else ''}"


def _form(name: str, takes: frozenset[str]) -> str:
    example = _EXAMPLES.get(name, "calls" if "of" in takes else "0.7")
    return f"{name}:{'NAME' if 'of' in takes else 'THRESHOLD'}, such as {name}:{example}"


def _of_and_threshold(rest: str) -> tuple[str, float | None]:
    of, colon, last = rest.rpartition(":")
    if not colon:
        return rest.strip(), None
    return of.strip(), _threshold(last, "a name and a threshold, such as NAME:0.7")


def _threshold(text: str, form: str) -> float:
    """Return a number, or a share that is written as `70 %`."""
    plain = text.strip()
    try:
        return float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError as error:
        raise BadMetric(f"expected {form}; found the threshold {text!r}; write a number") from error
