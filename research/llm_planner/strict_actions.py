"""What a language model must state where other planners have a default: what would matter, and what would refute it.

The same actions with fewer of their fields optional. An accepted answer is turned into the plain action. What a planner
may do instead of what is due, such as to decline, it says in the same flat object, as strict endpoints take no choice
between two: fields of the other actions are then whatever the schema had the model say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, Field

from research.planner.digest import Digest, Stage
from research.proposals.actions import (
    MOST_HYPOTHESES,
    Action,
    AskUser,
    Conclude,
    Decline,
    Explore,
    Note,
    Number,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedScreen,
    Replicate,
    Revise,
)

Other = Replicate | Explore | Conclude | Decline | Note | Revise | AskUser
"""What may be taken in the place of a due proposal or design, or said before it."""
LOOK: Final = "look"
"""What a look in plain JSON is called, as an action and as the field that names it."""


class StatedHypothesis(ProposedHypothesis):
    """One claim: the treatment value of one job field moves the metric away from the control value's."""

    smallest_effect: Number = Field(gt=0)
    """The smallest difference of the metric that would matter; at most the study's `smallest_effect`."""
    falsifier: str = Field(min_length=1, max_length=500)
    """The cheapest observation that would show the claim to be false."""


class StatedPropose(Propose):
    """Put hypotheses on the board, or say that a search for the best values comes first."""

    hypotheses: tuple[StatedHypothesis, ...] = Field(default=(), max_length=MOST_HYPOTHESES)
    """One to three hypotheses; none if `search` is true."""

    def plain(self) -> Propose:
        """Return the action without the demands on it."""
        return Propose.model_validate(self.model_dump())


class StatedScreen(ProposedScreen):
    """A search: candidates are trained shortly with one seed, and the best of them are then confirmed on fresh seeds.

    The control has the job's values of the knobs, or those that you name; the claim on each confirmed candidate is
    written by code.
    """

    smallest_effect: Number = Field(gt=0)
    """The smallest difference of the metric that would matter; at most the study's `smallest_effect`."""


class StatedDesign(ProposeDesign):
    """Ask for a comparison of all proposed hypotheses in one environment, or for the screen that finds the arms."""

    screen: StatedScreen | None = None
    """The screen, if you proposed a search; null otherwise."""

    def plain(self) -> ProposeDesign:
        """Return the action without the demands on it."""
        return ProposeDesign.model_validate(self.model_dump())


ACTIONS: Final[Mapping[Stage, type[StatedPropose] | type[StatedDesign] | type[Conclude]]] = {
    "propose": StatedPropose,
    "design": StatedDesign,
    "conclude": Conclude,
}
"""The action that each stage expects."""
DECLINABLE: Final[tuple[Stage, ...]] = ("propose", "design")
"""Stages in which a planner may decline instead."""
_WITHHELD = ("seeds_per_arm",)
"""Fields that no model is ever offered."""
_UNSURE_KEYWORDS = ("default", "title", "minLength", "maxLength")
"""JSON schema keywords that strict endpoints refuse; the answer is validated here in any case."""


def instead(digest: Digest) -> tuple[type[Other], ...]:
    """Return the actions that may be taken in the place of the one that is due, or before it."""
    if digest.stage not in DECLINABLE:
        return ()
    asides: tuple[type[Other], ...] = () if digest.notebook is None else (Note, Revise, AskUser)
    if digest.inquiry is None:
        return (Decline, *asides)
    again: tuple[type[Other], ...] = (Replicate, Explore) if digest.stage == "propose" else ()
    return (*again, Conclude, Decline, *asides)


def stated(digest: Digest, answer: Mapping[str, Any]) -> Action:
    """Return the action that an answer states; raise pydantic's ValidationError for one that may not be taken now."""
    others = instead(digest)
    other = next((kind for kind in others if named(kind) == answer.get("action")), None)
    if other is not None:
        return other.model_validate({name: answer[name] for name in other.model_fields if name in answer})
    due = ACTIONS[digest.stage]
    theirs = {LOOK, "arguments", *(name for kind in others for name in kind.model_fields)} - set(due.model_fields)
    action = due.model_validate({name: value for name, value in answer.items() if name not in theirs})
    return action if isinstance(action, Conclude) else action.plain()


def named(kind: type[BaseModel]) -> str:
    """Return what an action is called."""
    return str(kind.model_fields["action"].default)


def due_schema(digest: Digest, looks: Iterable[str] = ()) -> dict[str, Any]:
    """Return the JSON schema of what may be answered: the due action's, with what may be said instead of it.

    `looks` are those that may be asked for in the same way, where an endpoint takes no tools.
    """
    withheld = ([] if digest.code_allowed else ["code"]) + ([] if digest.inquiry is not None else ["why"])
    due = schema(ACTIONS[digest.stage], withheld)
    properties, parts = dict(due["properties"]), dict(due.get("$defs", {}))
    for kind in instead(digest):
        other = schema(kind)
        properties, parts = _joined(properties, other["properties"], named(kind)), other.get("$defs", {}) | parts
    if names := list(looks):
        properties = _joined(properties, _look(names), LOOK)
    return {**due, "properties": properties, "required": list(properties), **({"$defs": parts} if parts else {})}


def _look(names: Sequence[str]) -> dict[str, Any]:
    wanted = {"type": "string", "enum": ["", *names], "description": "What to look at."}
    return {LOOK: wanted, "arguments": {"type": "string", "description": "Its arguments, a JSON object as a text."}}


def _joined(properties: Mapping[str, Any], others: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the properties of a flat object that may also be another action, of this name."""
    action = {**properties["action"], "enum": [*properties["action"]["enum"], name]}
    found = {**properties, "action": action}
    for key, entry in others.items():
        if key != "action":
            said = f"Only with '{name}': {entry.get('description', '')}"
            before = found.get(key)
            found[key] = {**entry, "description": said} if before is None else _also(before, said)
    return found


def _also(entry: Mapping[str, Any], said: str) -> dict[str, Any]:
    return {**entry, "description": f"{entry.get('description', '')} {said}".strip()}


def schema(action: type[BaseModel], withheld: Sequence[str] = ()) -> dict[str, Any]:
    """Return an action's JSON schema in the strict subset: every property required, none additional.

    `withheld` are fields that are not offered; what older turns held never is.
    """
    whole = action.model_json_schema()
    for entry in (whole, *whole.get("$defs", {}).values()):
        for name in (*_WITHHELD, *withheld):
            entry.get("properties", {}).pop(name, None)
    strict = _strict(whole)
    assert isinstance(strict, dict)
    return strict


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    kept = {key: entry for key, entry in node.items() if key not in _UNSURE_KEYWORDS}
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    kept = {
        key: _properties(entry) if key in ("properties", "$defs") else _strict(entry) for key, entry in kept.items()
    }
    if "properties" in kept:
        kept |= {"required": list(kept["properties"]), "additionalProperties": False}
    return kept


def _properties(named: dict[str, Any]) -> dict[str, Any]:
    return {name: _strict(entry) for name, entry in named.items()}
