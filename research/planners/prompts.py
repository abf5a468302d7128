"""What a language model is told and must state, and the checks of its words.

Nothing that an agent, a trained policy or training code wrote enters a prompt. Answers are one flat object, since
strict endpoints take no choice between two; fields of other actions than the one that is taken are ignored.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, get_args

from pydantic import BaseModel

from research.planners.context import PlannerContext, Stage
from research.planners.tools import StudyTools
from research.proposals import actions
from research.proposals.slots import code_rule

ACTIONS: Final[Mapping[Stage, type[Any]]] = {
    "propose": actions.Propose, "design": actions.ProposeDesign, "look": actions.GoOn, "repair": actions.Repair,
    "conclude": actions.Write, "review": actions.Review,
}  # fmt: skip
"""The action that each stage expects."""
DECLINABLE: Final[tuple[Stage, ...]] = ("propose", "design")
"""Stages in which a planner may decline instead."""
_WITHHELD = ("seeds_per_arm",)
"""Fields that no model is ever offered."""
_UNSURE_KEYWORDS = ("default", "title", "minLength", "maxLength")
"""JSON schema keywords that strict endpoints refuse; the answer is validated here in any case."""


def alternative_actions(context: PlannerContext) -> dict[str, type[Any]]:
    """Return the actions that may be taken instead of the due one, or said before it, by their names."""
    if context.stage in ("conclude", "review"):
        return {}
    later: tuple[type[Any], ...] = () if context.campaign is None else (actions.Conclude,)
    if context.stage == "propose":
        explore = () if context.explored is None else (actions.Explore,)
        later = (*((actions.Replicate,) if later else ()), *explore, *later)
    instead = (actions.Settle,) if context.stage in ("look", "repair") else (*later, actions.Decline)
    asides = () if context.notebook is None else get_args(actions.SideAction)
    return {str(kind.model_fields["action"].default): kind for kind in (*instead, *asides)}


def parse_action(context: PlannerContext, answer: Mapping[str, Any]) -> actions.Action:
    """Return the action that an answer states; raise pydantic's ValidationError for one that may not be taken now."""
    others, due = alternative_actions(context), ACTIONS[context.stage]
    kind = others.get(str(answer.get("action")), due)
    theirs = {name for other in others.values() for name in other.model_fields} - set(due.model_fields)
    dropped = theirs if kind is due else answer.keys() - kind.model_fields  # in order: refusals are recorded by it
    action: actions.Action = kind.model_validate({name: answer[name] for name in answer if name not in dropped})
    return action


def due_schema(context: PlannerContext, *, described: bool = True) -> dict[str, Any]:
    """Return the JSON schema of the due action and of those instead of it, as one flat object."""
    withheld = (["code"] if context.plays_seen else []) + (
        ["tested"] if context.campaign is not None else [] if context.known else ["why"]
    )
    withheld += ["node"] if context.notebook is None else []
    due = schema(ACTIONS[context.stage], withheld)
    properties, parts = dict(due["properties"]), dict(due.get("$defs", {}))
    for name, kind in alternative_actions(context).items():
        other = schema(kind)
        parts = other.get("$defs", {}) | parts
        action = properties["action"]
        properties["action"] = {**action, "enum": [*action["enum"], name]}
        for key, field in other["properties"].items():
            if key != "action":
                before = properties.get(key, {})
                whole = f"{before.get('description', '')} Only with '{name}': {field.get('description', '')}".strip()
                properties[key] = {**(before or field), "description": whole}
    flat = {**due, "properties": properties, "required": list(properties), **({"$defs": parts} if parts else {})}
    return flat if described else dict(_make_strict(flat, ("description",)))


def schema(action: type[BaseModel], withheld: Sequence[str] = ()) -> dict[str, Any]:
    """Return an action's JSON schema in the strict subset, all required, none additional, without `withheld` fields."""
    whole = action.model_json_schema()
    for entry in (whole, *whole.get("$defs", {}).values()):
        for name in (*_WITHHELD, *withheld):
            entry.get("properties", {}).pop(name, None)
    strict = _make_strict(whole)
    assert isinstance(strict, dict)
    return strict


def _make_strict(node: Any, left_out: Sequence[str] = _UNSURE_KEYWORDS) -> Any:
    if isinstance(node, list):
        return [_make_strict(entry, left_out) for entry in node]
    if not isinstance(node, dict):
        return node
    kept = {key: entry for key, entry in node.items() if key not in left_out}
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    kept = {
        key: {name: _make_strict(part, left_out) for name, part in entry.items()}
        if key in ("properties", "$defs")
        else _make_strict(entry, left_out)
        for key, entry in kept.items()
    }
    if "properties" in kept:
        kept |= {"required": list(kept["properties"]), "additionalProperties": False}
    return kept


MOST_TOOL_CALLS: Final = 8
"""Looks of one turn."""
MOST_SIDE_ACTIONS: Final = 3
"""Notes, revisions and questions of one turn."""
NUMBERS: Final = {"MOST_TOOL_CALLS": MOST_TOOL_CALLS, "MOST_SIDE_ACTIONS": MOST_SIDE_ACTIONS}


@cache
def told(section: str, later: bool = False) -> str:
    """Return a text of `prompts.md`, in its words for `later` rounds if it has some, with what it names filled in."""
    page = resources.files(__package__).joinpath("prompts.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (.+)\n\n((?:.+\n)+)", page, re.MULTILINE))
    text = sections.get(f"{section} later", "") if later else ""
    words = " ".join((text or sections[section]).split())
    return re.sub(r"<([a-zA-Z_ ]+)>", lambda match: str(NUMBERS.get(match[1]) or told(match[1])), words)


def messages(
    context: PlannerContext, tools: StudyTools | None = None, *, schema_apart: bool = False
) -> list[dict[str, Any]]:
    """Return the messages that ask for the due action; a schema that goes apart has its descriptions here."""
    first, proposing, before = context.campaign is None, context.stage == "propose", context.stage in DECLINABLE
    answer = due_schema(context)
    rules = (  # what is told, and whether it is told now: the rule of an action is one section
        (told(context.stage, later=not first), True),
        (told("kinds"), proposing),
        (told("conditions"), before),
        (code_rule(context.code_allowed), proposing and not context.plays_seen),
        (told("models"), before and bool(context.wanted.models.by_name)),
        (told("explores"), context.explores),
        (told("fixed"), before and bool(context.fixed)),
        (told("replication"), proposing and not first),
        (told("exploration"), proposing and context.explored is not None),
        (f"{told('notebook')} {told('plan')}", (before or context.stage == "look") and context.notebook is not None),
        (told("looks"), tools is not None),
    )
    facts = context.facts()
    if proposing and tools is None:  # else it can look that up
        facts["what_job_fields_do"] = {spec.name: " ".join(spec.description.split()) for spec in context.fields}
    described = [
        f"- {name}.{key}: {' '.join(field['description'].split())}"
        for name, entry in {"answer": answer, **answer.get("$defs", {})}.items()
        for key, field in entry.get("properties", {}).items()
        if "description" in field
    ]
    about = "\n".join(("Fields of the answer, whose schema this request carries:", *described))
    parts = (
        *(text for text, now in rules if now),
        "Facts:\n" + json.dumps(facts, ensure_ascii=False),
        about if schema_apart else "JSON schema of the answer:\n" + json.dumps(answer),
    )
    return [{"role": "system", "content": told("system")}, {"role": "user", "content": "\n\n".join(parts)}]
