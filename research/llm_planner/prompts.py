"""What a language model is told: its role, the due action, the facts of the digest and the schema of the answer.

Facts only: nothing that an agent, a trained policy or training code wrote ever enters a prompt.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from research.decisions.language import FIELDS
from research.llm_planner.strict_actions import ACTIONS, DECLINABLE
from research.planner.digest import Digest, Stage
from research.proposals.actions import Decline
from research.proposals.reward_code import MOST_BYTES, SIGNATURE

_SYSTEM = (
    "You plan small, clean experiments in reinforcement learning of language models. You propose; code checks and "
    "locks the design, draws the seeds, trains, evaluates on hidden tasks and computes the verdicts. Use only the "
    "facts you are given. Answer with exactly one JSON object that fits the schema, and nothing else."
)
_IN_THE_OPEN = (
    "What of the topic you leave out you say in `not_tested`. Answer no other question in its place: where nothing "
    "here can test the topic, set `action` to 'decline' and say why in `reason`."
)
_TASKS: dict[Stage, str] = {
    "propose": (
        "Propose the hypotheses that answer the topic: one if that is enough, three at most. Each compares a control "
        "and a treatment value of ONE of `job_fields`; everything else is equal. All hypotheses share one control arm, "
        "so those about the same field have the same control value. Choose values far enough apart for the effect to "
        "show with a few seeds. Runs are judged by `metric`, unless the topic asks for another one of `metrics`: then "
        "name that. `direction`, predictions and `smallest_effect` are of its number, in its unit; where lower is "
        "better, better is a decrease; episodes to a threshold lie between 0 and all training episodes of a run. "
        "State the smallest effect that would matter, at most the study's own `smallest_effect`: whether the study can "
        "see it decides how many seeds it takes, and a smaller difference counts as none. A topic that takes a claim "
        "for granted is tested as that claim. If the topic asks which values are best, set `search` and propose no "
        "hypotheses: a screen is designed next. Your "
        "predictions are scored afterwards: be as unsure as you are. " + _IN_THE_OPEN
    ),
    "design": (
        "Design the comparison of all `hypotheses`: one control arm and one arm per hypothesis. Code draws the seeds, "
        "and decides how many by the promised power. Its cost is about ceil(arms * seeds / runs_at_once) * "
        "seconds_per_run, and it must fit `seconds_left` and `max_runs`; seconds_per_run grows with steps and "
        "episodes_per_step. In every arm episodes_per_step must be a multiple of group_size; use `constants` if the "
        "defaults do not fit. `screen` is null unless `search` is true; then name the fields to search with their "
        "values, and there are no hypotheses: the control holds the defaults. Leave `decision_table` empty and "
        "`replication` null unless you have a reason. What the topic names is varied, held constant or named in "
        "`not_tested`, and an environment that it names is the design's. " + _IN_THE_OPEN
    ),
    "conclude": (
        "The verdicts are in, and final. Conclude in one or two sentences what they say about the topic. State no "
        "number that is not among the facts."
    ),
}
_LANGUAGE = (
    f"`kill_if` and the decision table's `when` are predicates over the verdict at a look, with the names "
    f"{', '.join(FIELDS)} (numbers) and verdict ('supported', 'refuted', 'equivalent', 'inconclusive' or 'invalid'), "
    "comparisons, `in`, and, or, not, + and -, such as: verdict == 'inconclusive' and hi < 0.02. Nothing else parses. "
    "Of a table the first rule that holds decides; where none holds, the hypothesis gets no more runs."
)
_REWARD_TASK = (
    "Only if the topic asks for it, a hypothesis may vary the training reward instead of a job field: its `variable` "
    "is 'reward', its `control` 'built-in' (the environment's own), its `treatment` a short name you give, such as "
    f"'dense-hint', and its `code` Python source (at most {MOST_BYTES} bytes) that defines `{SIGNATURE}`. It is called "
    "once after each training episode with the task's id and data, the chat messages of the play, and `outcome`, which "
    "holds the environment's own `reward` and `success` (see `reward_examples`); it must return a finite number within "
    "a second, from the standard library alone. It replaces the training reward only. It runs in a container without "
    "network, and cannot touch the verdict: that is measured on hidden tasks by the environment's own evaluator. A "
    "function that raises or hangs fails its runs. In any other hypothesis `code` is null."
)
_MODEL_TASK = (
    "The user names models to compare: `variable` may be 'model', with their names as values, and nothing else is "
    "varied then. Such runs are judged by what each gains, its success on hidden tasks after the last step less its "
    "success before the first: predict that difference. No other model can be named."
)
_FIXED_TASK = (
    "`fixed_by_the_user` are fields of the job under all arms that the user has set: keep to them. One of them may be "
    "varied only if its value is among those compared. `constants` may hold any other field of a job."
)
_WITHHELD = ("seeds_per_arm",)
"""Fields that no model is offered."""
_UNSURE_KEYWORDS = ("default", "title", "minLength", "maxLength")
"""JSON schema keywords that strict endpoints refuse; the answer is validated here in any case."""


def messages(digest: Digest) -> list[dict[str, str]]:
    """Return the messages that ask for the due action."""
    parts = (
        _TASKS[digest.stage],
        *([_LANGUAGE] if digest.stage != "conclude" else []),
        *([_REWARD_TASK] if digest.stage == "propose" and digest.code_allowed else []),
        *([_MODEL_TASK] if digest.stage != "conclude" and digest.wanted.models.by_name else []),
        *([_FIXED_TASK] if digest.stage != "conclude" and digest.fixed else []),
        "Facts:\n" + json.dumps(digest.facts(), ensure_ascii=False),
        "JSON schema of the answer:\n" + json.dumps(_due_schema(digest)),
    )
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": "\n\n".join(parts)}]


def correction(error: str) -> str:
    """Return what is said to a model whose answer was refused."""
    return f"That answer was refused: {error}. Answer again with one JSON object that fits the schema."


def response_format(digest: Digest) -> dict[str, Any]:
    """Return the `response_format` that makes an endpoint keep to the due action's schema."""
    named = {"name": digest.stage, "strict": True, "schema": _due_schema(digest)}
    return {"type": "json_schema", "json_schema": named}


def _due_schema(digest: Digest) -> dict[str, Any]:
    due = schema(ACTIONS[digest.stage], code=digest.code_allowed)
    return _declinable(due) if digest.stage in DECLINABLE else due


def _declinable(due: dict[str, Any]) -> dict[str, Any]:
    """Return an action's schema with the choice to decline, and the field for the reason."""
    reason = {"type": "string", "description": f"Only with 'decline': {Decline.model_fields['reason'].description}"}
    action = {**due["properties"]["action"], "enum": [*due["properties"]["action"]["enum"], "decline"]}
    properties = {**due["properties"], "action": action, "reason": reason}
    return {**due, "properties": properties, "required": list(properties)}


def schema(action: type[BaseModel], *, code: bool = False) -> dict[str, Any]:
    """Return an action's JSON schema in the strict subset: every property required, none additional.

    Unless `code` is set, the field for a reward function's source is not offered; what older turns held never is.
    """
    whole = action.model_json_schema()
    for entry in (whole, *whole.get("$defs", {}).values()):
        for name in _WITHHELD if code else ("code", *_WITHHELD):
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
