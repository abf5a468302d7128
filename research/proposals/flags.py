"""A comparison by flags, which needs no reading: what is varied over which values, what is held, and where.

`--vary group_size=4,16 --set steps=80 --env guess`. The first value of a field is the control. Flags are checked like a
planner's proposals, and stand in the log as they were given.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from research.errors import BadTopic, DesignRefused
from research.proposals.arms import Scalar, field_value, value_text
from research.spelling import did_you_mean
from swarm.environments.registry import environments
from swarm.job import tunables

EXAMPLE = "--vary group_size=4,16 --env guess"


@dataclass(frozen=True, slots=True)
class RequestedComparison:
    """What flags ask for; without any, the topic is read."""

    vary: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    """Fields and their values, the control first."""
    held: Mapping[str, Scalar] = field(default_factory=dict)
    """Fields that all arms have at a value of the user's."""
    environment: str | None = None
    """What is trained and measured on; None for what the topic names."""

    @classmethod
    def asked(cls, vary: Sequence[str], held: Sequence[str], environment: str | None) -> Self:
        """Return what flags say; raise BadTopic or DesignRefused for what no study can have."""
        if environment is not None and environment not in environments():
            near = did_you_mean(environment, environments()) or "; choose one"
            raise DesignRefused(
                f"expected an environment among {', '.join(environments())}; found {environment!r}{near}"
            )
        varied = {name: _values(name, text) for name, text in map(_split_vary, vary)}
        constant = {name: _value(name, text) for name, text in map(_split_set, held)}
        if len(varied) < len(vary) or len(constant) < len(held) or varied.keys() & constant.keys():
            raise BadTopic("expected each field once among --vary and --set; found one twice; name it once")
        if constant and not varied:
            raise BadTopic(f"expected --set beside --vary; found it alone; say what is compared, such as {EXAMPLE}")
        return cls(varied, constant, environment)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return what a study's settings hold; nothing where an older version wrote them."""
        held = settings.get("wanted", {})
        vary = {name: tuple(values) for name, values in held.get("vary", {}).items()}
        return cls(vary, dict(held.get("set", {})), held.get("environment"))

    def settings(self) -> dict[str, Any]:
        """Return it as a study's settings hold it; empty for nothing."""
        held: dict[str, Any] = {}
        if self.vary:
            held["vary"] = {name: list(values) for name, values in self.vary.items()}
        if self.held:
            held["set"] = dict(self.held)
        if self.environment is not None:
            held["environment"] = self.environment
        return {"wanted": held} if held else {}

    def refuses(self, environment: str) -> DesignRefused | None:
        """Return why a design in an environment is not what a flag asks for, or None."""
        if self.environment in (None, environment):
            return None
        return DesignRefused(
            f"expected a design in {self.environment}, which the user asks for; found {environment}; design it there"
        )

    def text(self) -> str:
        """Return the flags that say it: what was asked, where no topic was."""
        vary = [f"--vary {name}={','.join(map(value_text, values))}" for name, values in self.vary.items()]
        held = [f"--set {name}={value_text(value)}" for name, value in self.held.items()]
        return " ".join([*vary, *held, *([f"--env {shlex.quote(self.environment)}"] if self.environment else [])])


def topic_of(topic: str | None, wanted: RequestedComparison) -> str:
    """Return what is asked: the topic, or the flags in its place; raise BadTopic for neither and for both."""
    said = (topic or "").strip()
    if said and wanted.vary:
        raise BadTopic("expected a topic or --vary; found both; leave one out, so that it is clear which is asked")
    if not said and not wanted.vary:
        raise BadTopic(
            'expected a topic, found nothing; say what to study, such as "Does a larger group size help?", or name it '
            f"by flags: {EXAMPLE}"
        )
    return said or wanted.text()


def _split_vary(text: str) -> tuple[str, str]:
    return _split(text, f"--vary FIELD=VALUE,VALUE, such as {EXAMPLE}")


def _split_set(text: str) -> tuple[str, str]:
    return _split(text, "--set FIELD=VALUE, such as --set steps=80")


def _split(text: str, expected: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not values.strip():
        raise BadTopic(f"expected {expected}; found {text!r}; write the field, an equals sign and values")
    if name not in tunables():
        near = did_you_mean(name, tunables()) or f"; they are {', '.join(tunables())}"
        raise BadTopic(f"expected a field that can be varied; found {name!r}{near}")
    return name, values


def _values(name: str, text: str) -> tuple[Scalar, ...]:
    values = tuple(_value(name, part) for part in text.split(","))
    if len(values) < 2:
        raise BadTopic(f"expected two values of {name} or more; found {text!r}; the first is the control")
    if len(set(values)) < len(values):
        raise BadTopic(f"expected different values of {name} to compare; found {text}; name each once")
    return values


def _value(name: str, text: str) -> Scalar:
    """Return a value as the job holds it, read as JSON or else as a word."""
    try:
        found = json.loads(text.strip())
    except ValueError:
        found = text.strip()
    if not isinstance(found, bool | int | float | str):
        raise BadTopic(f"expected a value of {name}; found {text!r}; write a number, true, false or a word")
    return field_value(name, found)
