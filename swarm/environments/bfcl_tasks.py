"""BFCL's tasks of several turns over stateful tools: `bfcl:multi_turn_base`, 200 of them.

The user's turns follow one another, each when the policy answers without a call; more than 20 answers in a turn end
the play, as in BFCL. Its own checker judges all calls: the state after each turn, and what they returned.
`multi_turn_miss_param` has turns that lack what a call needs, `multi_turn_long_context` long results.
"""

import json
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

from swarm.environments.adapters import require_same, unknown_error
from swarm.environments.base import Environment, Game, Message, Outcome, Task, ToolUse, calls_of, tool_result
from swarm.errors import InvalidRequest

CATEGORIES: Final = ("multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context")


def read(path: str) -> list[dict[str, Any]]:
    import bfcl_eval

    file = Path(str(bfcl_eval.__file__)).parent / "data" / path
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@lru_cache
def tools_of(api: str) -> tuple[Mapping[str, Any], ...]:
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI

    def schema(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        return {
            key: GORILLA_TO_OPENAPI.get(value, "string") if key == "type" and isinstance(value, str) else schema(value)
            for key, value in part.items()
        }

    docs = read(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[api]}")
    functions = ({key: schema(doc[key]) for key in ("name", "description", "parameters")} for doc in docs)
    return tuple({"type": "function", "function": function} for function in functions)


def _forget(name: str) -> None:
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    for instance in [each for each in list(vars(multi_turn_utils)) if each.startswith(name)]:
        vars(multi_turn_utils).pop(instance, None)


class BfclGame(Game):
    """One play; the package keeps the tools' states under a name of its own."""

    def __init__(self, row: Mapping[str, Any], truth: Sequence[Sequence[str]]) -> None:
        self._row, self._truth = row, truth
        self.tools = [tool for api in row["involved_classes"] for tool in tools_of(api)]
        self._known = {tool["function"]["name"] for tool in self.tools}
        self._turns: list[list[list[str]]] = [[]]
        self._name = f"ajet{uuid4().hex}"
        weakref.finalize(self, _forget, self._name)

    def opening(self) -> list[Message]:
        return list(self._row["question"][0])

    def answer(self, message: Message) -> list[Message]:
        from bfcl_eval.constants.default_prompts import MAXIMUM_STEP_LIMIT

        calls, turn = calls_of(message), len(self._turns)
        if not calls and turn < len(self._truth):
            self._turns.append([])
            return list(self._row["question"][turn])
        self._turns[-1].append([])
        return [tool_result(call, self._use(call)) for call in calls if len(self._turns[-1]) <= MAXIMUM_STEP_LIMIT]

    def outcome(self) -> Outcome:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

        turns = [[step for step in turn if step] for turn in self._turns]
        turns += [[] for _ in self._truth[len(turns) :]]
        found = multi_turn_checker(turns, self._truth, self._row, "", self._name)
        facts = {"turns": len(self._turns), "calls": sum(len(step) for turn in turns for step in turn)}
        return Outcome(float(found["valid"]), facts={name: float(value) for name, value in facts.items()})

    def _use(self, call: ToolUse) -> str:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        if call.error or call.name not in self._known or not all(map(str.isidentifier, call.arguments)):
            return f"Error: {call.error or f'no tool {call.name} with these arguments'}"  # the package evaluates names
        written = f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
        self._turns[-1][-1].append(written)
        (result,), _ = execute_multi_turn_func_call(
            [written], self._row["initial_config"], self._row["involved_classes"], self._name, self._row["id"],
            long_context="long_context" in self._row["id"],
        )  # fmt: skip
        return str(result)


class Bfcl(Environment):
    """The tasks of one category."""

    measures: ClassVar[str] = "BFCL's checker finds the state and the results of the calls right after each turn"
    solved_at: ClassVar[float] = 1.0

    def __init__(self, category: str) -> None:
        self.title = f"BFCL's {category}"  # type: ignore[misc]  # of each one its own
        self._rows = {row["id"]: row for row in read(f"BFCL_v4_{category}.json")}
        self.truth = {row["id"]: row["ground_truth"] for row in read(f"possible_answer/BFCL_v4_{category}.json")}

    def generate(self, seed: int) -> Task:
        row = [*self._rows.values()][seed % len(self._rows)]
        return Task(row["id"], {"question": row["question"]})

    def game(self, task: Task) -> BfclGame:
        require_same(task, "question", self._rows[task.id]["question"], "bfcl-eval")
        return BfclGame(self._rows[task.id], self.truth[task.id])


def make(name: str, options: Mapping[str, Any]) -> Bfcl:
    if name not in CATEGORIES:
        raise unknown_error("a category of BFCL that is played here", name, CATEGORIES)
    if options:
        raise InvalidRequest(f"expected no option of bfcl but tasks; found {', '.join(options)}")
    return Bfcl(name)
