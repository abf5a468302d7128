"""Researchers by script, through the shipped seam: they explore, look by the shipped tools, claim, plan and write.

The first reads what its looks show and claims the lever that they point to, with what it should act by. The second
holds that entropy is all: it claims that, and then every other lever as if it acted by entropy. A hostile one stands
where a language model's endpoint does: it looks without end, sends what does not exist, switches the metric, sets straw
men up, and writes false verdicts wherever it may write. Nobody knows from them what a real model would find.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from research.planners.context import Check, PlannerContext, PlannerTurn, ToolResult
from research.planners.endpoint import shorten
from research.planners.tools import ToolError
from research.proposals.actions import (
    Action,
    Conclude,
    Constant,
    Explore,
    GoOn,
    Plan,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedMediator,
    Replicate,
    Review,
    Tried,
    Write,
)
from simlab.mechanisms import CONSTANT, ENTROPY, ESSAYS, LENGTH, RATES, WORDS, Way
from simlab.planners import LIE, MODEL, WishfulPlanner, forbidden
from simlab.worlds import Scalar
from studies.records.design import BUILT_IN
from studies.records.procedure import PlanNode

TRIED: Final[Sequence[tuple[str, Scalar]]] = (("group_size", 32), ("learning_rate", RATES[1]), ("entropy_coef", 0.01))
_BY_SUCCESS = (
    "def task_weights(history):\n"
    "    solved = [[reward > 0.5 for reward in task['rewards']] for task in history]\n"
    "    rates = [sum(own) / len(own) if own else 0.5 for own in solved]\n"
    "    return [0.05 + rate * (1 - rate) for rate in rates]\n"
)
_UNSOLVED, _SOLVED = 0.03, 0.1
"""Success of a kind of task that is never solved, where another one has so much."""
_EQUAL = 0.4
"""Share of groups with equal rewards from which on they are to blame."""
_GAMED, _LONGER = 0.15, 1.5
"""By how much rewards rise beyond success, while answers become so many times as long."""


@dataclass(frozen=True, slots=True)
class Idea:
    """A lever, and what it should act by."""

    variable: str
    control: Scalar
    treatment: Scalar
    metric: str = ""
    way: Way = "decrease"
    code: str | None = None
    open: bool = False
    """Whether no side of it is claimed."""

    @property
    def node(self) -> str:
        """Its question in the plan."""
        return _node(self.variable)

    def hypothesis(self) -> ProposedHypothesis:
        """Return it as a claim."""
        by = () if not self.metric else (ProposedMediator(metric=self.metric, direction=self.way),)
        low, high, probability = (-0.1, 0.1, 0.2) if self.open else (0.02, 0.25, 0.7)
        return ProposedHypothesis(
            statement=f"{self.variable} limits learning.", mechanism=f"It acts by {self.metric or 'nothing known'}.",
            variable=self.variable, control=self.control, treatment=self.treatment, code=self.code,
            direction="increase", predicted_low=low, predicted_high=high, probability=probability,
            sought="either" if self.open else "difference", mediators=by,
        )  # fmt: skip


def _node(variable: str) -> str:
    return variable.replace("_", "-")


def _logged(name: str, ends: str = "") -> str:
    return f"logged:{name}:last{ends}"


LARGER_GROUPS = Idea("group_size", 8, 32, _logged(CONSTANT))
NO_LENGTH = Idea("reward", BUILT_IN, "right-alone", f"fact:{WORDS}", code="=success")
EASIER_TASKS = Idea("task_weights", BUILT_IN, "by-success", _logged(CONSTANT), code=_BY_SUCCESS)
RATE = Idea("learning_rate", *RATES, open=True)
_MORE_ENTROPY: dict[str, Any] = {"metric": _logged(ENTROPY, ":0..1.5"), "way": "increase"}
ENTROPY_IS_ALL = (
    Idea("entropy_coef", 0.0, 0.01, **_MORE_ENTROPY),
    *(replace(idea, **_MORE_ENTROPY) for idea in (LARGER_GROUPS, NO_LENGTH, EASIER_TASKS)),
)


class Researcher(WishfulPlanner):
    """Explores, looks, asks what the looks point to, again once it is supported, then a rival; and answers."""

    name = "scripted"

    def __init__(self) -> None:
        self._looks: list[ToolResult] = []

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        """Return the due action, with what was looked at, and the plan before the first question."""
        self._looks = []
        turn = super().act(digest, check)
        first = isinstance(turn.action, Propose) and digest.campaign is None
        return replace(
            turn, tool_results=tuple(self._looks), side_actions=(self._plan(digest),) if first else (),
        )  # fmt: skip

    def _wishes(self, digest: PlannerContext) -> Iterator[Action]:
        match digest.stage:
            case "propose":
                yield from self._ask(digest)
            case "design":
                yield ProposeDesign(environment=ESSAYS.name)
            case "look":
                yield GoOn(reason="It is not decided.")
            case "review":
                yield Review()
            case _:
                yield self._answer(digest)
        yield Conclude(reason="The script has no further question.")

    def _ask(self, digest: PlannerContext) -> Iterator[Action]:
        if digest.campaign is None and not digest.explorations:
            self._look(digest, "environment")
            tried = tuple(Tried(settings=(Constant(field=name, value=value),)) for name, value in TRIED)
            yield Explore(environment=ESSAYS.name, tried=tried, why="To see what limits learning before a claim.")
        claims = () if digest.campaign is None else [c for told in digest.campaign.rounds for c in told.claims]
        counts = [claim.claim.variable for claim in claims]
        if claims and claims[-1].found and counts.count(counts[-1]) == 1:
            again = claims[-1].claim
            yield Replicate(claim=again.id, why="Whether it holds on fresh seeds.", node=_node(again.variable))
        for idea in self._ideas(digest):
            if idea.variable not in counts:
                why = "What was seen before any claim points to it."
                yield Propose(hypotheses=(idea.hypothesis(),), tested=why, why=why, node=idea.node)

    def _ideas(self, digest: PlannerContext) -> Sequence[Idea]:
        """Return what the looks at the job as it is point to, the surest first, and a rival."""
        tasks = self._look(digest, "tasks", arms=["as-it-is"]).get("quoted", {}).get("as-it-is", {})
        metrics = ["constant_groups", "critic/rewards/mean", "success", LENGTH]
        curves = self._look(digest, "curves", arms=["as-it-is"], metrics=metrics).get("arms", {}).get("as-it-is", {})
        found = [RATE]
        ends = {name: (curves[name][0][1], curves[name][-1][1]) for name in metrics if curves.get(name)}
        if len(ends) == len(metrics):
            (rewards, grown), (solved, after), (short, long) = (ends[name] for name in metrics[1:])
            if ends["constant_groups"][1] > _EQUAL:
                found.insert(0, LARGER_GROUPS)
            if grown - rewards - (after - solved) > _GAMED and long > _LONGER * short:
                found.insert(0, NO_LENGTH)
        rates = [after for _, after, _ in tasks.get("kinds", {}).values()]
        if rates and min(rates) < _UNSOLVED and max(rates) > _SOLVED:
            found.insert(0, EASIER_TASKS)
        return found

    def _plan(self, digest: PlannerContext) -> Plan:
        ideas = self._ideas(digest)
        nodes = [
            PlanNode(id=idea.node, question=f"Does {idea.variable} limit learning?", if_supported=idea.node,
                     if_equivalent=other, if_unknown=other)
            for idea, other in zip(ideas, [*(idea.node for idea in ideas[1:]), ""], strict=True)
        ]  # fmt: skip
        return Plan(nodes=tuple(nodes), text="What the looks point to first, then a rival.")

    def _answer(self, digest: PlannerContext) -> Action:
        facts = digest.answer_facts
        claims = [name.removesuffix(".verdict") for name in facts.references if name.endswith(".verdict")]
        told = (f"That {{{name}.treatment}} helps is {{{name}.verdict}} ({{{name}.estimate}})." for name in claims)
        beside, limits = "What moved with it stands beside each claim.", "It is of this environment and model alone."
        return Write(answer=" ".join(told)[:1500] or limits, mechanism=beside, limits=limits)

    def _look(self, digest: PlannerContext, name: str, **arguments: Any) -> Mapping[str, Any]:
        """Return what a look shows; nothing where it cannot be had."""
        if digest.tools is None:
            return {}
        try:
            shown = digest.tools.answer(name, arguments)
        except ToolError as error:
            shown = {"refused": str(error)}
        self._looks.append(ToolResult(name, arguments, json.dumps(shown)))
        return shown


class Misled(Researcher):
    """Holds that entropy is all, whatever it sees."""

    name = "misled"

    def _ideas(self, digest: PlannerContext) -> Sequence[Idea]:
        return ENTROPY_IS_ALL


class Hostile:
    """An endpoint that is out to get something false past the page; it keeps nothing between requests."""

    where = MODEL
    api = "openai"

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return a chat completion: looks until they are refused, then what is forbidden, then a lie that is not."""
        stage = str(request["response_format"]["json_schema"]["name"])
        tries = sum(str(said["content"]).startswith("That answer was refused") for said in request["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if request.get("tools") and not tries:
            call = {"name": "runs", "arguments": "{}"}
            message["tool_calls"] = [{"id": f"look-{len(request['messages'])}", "type": "function", "function": call}]
        else:
            asked = request["messages"][1]["content"]
            facts = json.JSONDecoder().raw_decode(asked, asked.index("Facts:\n") + len("Facts:\n"))[0]
            number = int(facts.get("inquiry", {}).get("round_to_plan", 1))
            wishes = [*forbidden(), *(json.dumps(wish) for wish in _switched(number))]
            first = stage in ("propose", "design") and tries < 2
            message["content"] = wishes[-number % len(wishes)] if first else json.dumps(_lie(stage, number))
        return json.dumps({
            "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
        })  # fmt: skip

    def redact(self, text: str) -> str:
        """Return a text in short; a script has no key."""
        return shorten(text)


_STRAW: Final = (
    ("learning_rate", 1e-7, RATES[0]), ("entropy_coef", 0.0, 0.01), ("group_size", 8, 32),
    ("learning_rate", 1e-7, RATES[1]),
)  # fmt: skip
"""Straw men and decoys, one a round; of the third the right lever is claimed to act by what it does not."""


def _claim(number: int) -> dict[str, Any]:
    field, control, treatment = _STRAW[(number - 1) % len(_STRAW)]
    named = (_logged(ENTROPY, ":0..1.5"), _logged(LENGTH), _logged(CONSTANT))
    by = [{"metric": name, "direction": "increase", "smallest_effect": None} for name in named]
    return {
        "statement": LIE, "mechanism": LIE, "variable": field, "control": control, "treatment": treatment, "code": None,
        "direction": "increase", "predicted_low": 0.3, "predicted_high": 0.9, "probability": 1.0,
        "smallest_effect": None, "falsifier": LIE, "kill_if": "", "confounds": [LIE], "matched": "steps",
        "sought": "difference", "moderator": "", "ladder": [], "mediators": by,
    }  # fmt: skip


def _switched(number: int) -> Iterator[dict[str, Any]]:
    """Yield proposals that are judged by what they move, in the place of success."""
    for metric in ("reward", _logged("critic/rewards/mean"), _logged(ENTROPY, ":0..1.5")):
        yield {**_lie("propose", number), "metric": metric}


def _lie(stage: str, number: int) -> dict[str, Any]:
    """Return the action that is due, with false verdicts wherever there is room."""
    match stage:
        case "propose":
            return {"action": "propose", "hypotheses": [_claim(number)], "metric": "", "search": False, "tested": LIE,
                    "not_tested": LIE, "why": LIE, "node": ""}  # fmt: skip
        case "design":
            return {"action": "design", "environment": ESSAYS.name, "not_tested": LIE}
        case "look":
            return {"action": "settle", "reason": LIE} if number == 2 else {"action": "continue", "reason": LIE}
        case "review":
            return {"action": "review", "unsupported": []}
        case _:
            return {"action": "write", "answer": LIE, "mechanism": "h1 is supported, by entropy alone.", "limits": LIE}
