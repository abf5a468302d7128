"""The conversation about one action: asked, validated, and returned with the error as often as may be.

Answers are constrained by the endpoint where it can, by the prompt where it cannot, and validated here in both cases,
so nothing depends on the endpoint's manners. Looks and what is written down on the way take no try; both are counted. A
model that says the same again is asked no more.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from research.errors import NoDesignAccepted, PlannerFailed
from research.llm_planner.asking import Asking
from research.llm_planner.completions import LONGEST_ANSWER, Unusable, json_object
from research.llm_planner.coverage import left_out
from research.llm_planner.endpoint import short
from research.llm_planner.looking import Looking
from research.llm_planner.patience import PatientEndpoint
from research.llm_planner.prompts import MOST_ASIDES, correction, written_down
from research.llm_planner.strict_actions import stated
from research.planner.digest import Digest
from research.planner.looks import NO_LOOKS, NO_REWARD_NOW
from research.planner.protocol import Check, PlannerTurn
from research.planner.quoted import without_secrets
from research.planner.rewards import NOT_OFFERED
from research.proposals.actions import Action, Aside, AskUser, Note, Propose, ProposeDesign, Revise
from research.topic.requests import split_requests
from research.validation import describe
from studies.records.design import REWARD
from studies.records.planner_words import who

PLANNER = "llm"
FAILED = "failed"
"""What stands for the action of a turn that came to none."""


class ActionConversation:
    """One action: the conversation about it, its tries, looks and tokens."""

    def __init__(self, line: PatientEndpoint, model: str, digest: Digest, check: Check, *, tries: int) -> None:
        self._line = line
        self._model = model
        self._digest = digest
        self._check = check
        self._tries = tries
        self._looking = Looking(NO_LOOKS if digest.stage == "conclude" else digest.may_look, without_secrets)
        self._asking = Asking(line, model, digest, self._looking)
        self._asides: list[Aside] = []
        self._rejected: list[str] = []
        self._told: list[str] = []
        """The same for a person."""
        self._answer = ""
        """The last one."""
        self._refused: str | None = None
        """Why the last design was refused, if one was."""
        self._answers: set[str] = set()
        """Those that were refused."""

    def take(self) -> PlannerTurn:
        """Ask until an answer is acceptable, as often as it may; a PlannerFailed says what was looked at in vain."""
        try:
            return self._taken()
        except PlannerFailed as error:
            error.spent = self._spent()
            raise

    def _spent(self) -> dict[str, Any]:
        tokens = self._asking.usage
        return {
            "action": FAILED, "tries": len(self._rejected),
            "tokens": {"prompt": tokens.prompt_tokens, "completion": tokens.completion_tokens},
            "rejected": list(self._rejected), "note": "", "not_tested": [],
            "looks": [look.payload() for look in self._looking.taken],
        }  # fmt: skip

    def _taken(self) -> PlannerTurn:
        for number in range(1, self._tries + 1):
            try:
                action = self._action()
            except Unusable as error:
                self._reject(error)
                if self._repeats():
                    break
                continue
            return self._turn(action, number)
        raise self._failed()

    def _failed(self) -> PlannerFailed:
        told = "; ".join(f"({number}) {short(error)}" for number, error in enumerate(self._told, start=1))
        said = (
            f"expected a usable '{self._digest.stage}' answer of model {self._model!r}; found {len(self._rejected)} "
            f"refused: {told}; try another --planner-model, or --planner rules"
        )
        return PlannerFailed(said) if self._refused is None else NoDesignAccepted(said, self._refused)

    def _turn(self, action: Action, tries: int) -> PlannerTurn:
        tokens = self._asking.usage
        return PlannerTurn(
            action, tries, tokens.prompt_tokens, tokens.completion_tokens, tuple(self._rejected), self._note(),
            self._not_tested(action), looks=tuple(self._looking.taken), asides=tuple(self._asides),
        )  # fmt: skip

    def _action(self) -> Action:
        """Return the next acceptable action; what is to be written down before it is."""
        while True:
            self._hear()
            action = self._accepted(self._answer)
            if not isinstance(action, Note | Revise | AskUser):
                return action
            self._write_down(action)

    def _hear(self) -> None:
        """Hear the next answer that is no look."""
        while True:
            self._answer = ""
            message = self._asking.hear()
            self._answer = message.content or ""
            looked = self._looking.by_tools(message.tool_calls or ()) or self._looking.by_text(self._answer)
            if looked is None:
                return
            self._asking.add(looked)

    def _write_down(self, aside: Aside) -> None:
        if len(self._asides) >= MOST_ASIDES:
            raise Unusable(f"{MOST_ASIDES} things were written down in this turn, which is all that may be; act now")
        if aside in self._asides:
            raise Unusable("that was written down before, in this turn; act now")
        self._asides.append(aside)
        told = written_down(MOST_ASIDES - len(self._asides))
        self._asking.add([self._said(), {"role": "user", "content": told}])

    def _repeats(self) -> bool:
        """Return whether a refused answer was given before, word for word: nothing new is to be expected."""
        known = bool(self._answer) and self._answer in self._answers
        self._answers.add(self._answer)
        if known:
            self._rejected[-1] += "; the same answer as before"
            self._told[-1] += "; the same answer as before"
        return known

    def _not_tested(self, action: Action) -> tuple[str, ...]:
        """Return what the action says that it leaves out, quoted."""
        said = action.not_tested.strip() if isinstance(action, Propose | ProposeDesign) else ""
        return (f'{who(PLANNER, self._model)}: "{said}"',) if said else ()

    def _note(self) -> str:
        digest, notes = self._digest, list(self._asking.notes)
        if digest.inquiry is None:  # of a topic it is said once
            notes += [NOT_OFFERED] if digest.stage == "propose" and digest.lacks_reward else []
            notes += split_requests(digest.topic).without_effect if digest.stage == "design" else []
        return " ".join([*notes, *([self._line.note] if self._line.note else [])])

    def _accepted(self, answer: str) -> Action:
        value = json_object(answer)
        try:
            action = stated(self._digest, value)
        except ValidationError as error:
            raise Unusable(describe(error)) from error
        refused = self._check(action)
        missing = self._missing(action)
        if refused is not None or missing is not None:
            parts = ([refused.for_planner] if refused else []) + ([missing] if missing else [])
            self._refused = self._line.redacted("; ".join(parts)) if isinstance(action, ProposeDesign) else None
            raise Unusable("; ".join(parts), refused.message if refused else missing)
        return action

    def _missing(self, action: Action) -> str | None:
        """Return what an action passes over: of the topic, which a study's first round has to answer whole, or of what
        follows from the looks that were taken.
        """
        if isinstance(action, Propose) and self._looking.plays_seen:
            coded = any(entry.variable == REWARD for entry in action.hypotheses)
            return f"expected hypotheses about job fields; found a reward function: {NO_REWARD_NOW}" if coded else None
        first = self._digest.inquiry is None
        return left_out(self._digest, action) if first and isinstance(action, ProposeDesign) else None

    def _said(self) -> dict[str, str]:
        return {"role": "assistant", "content": self._answer[:LONGEST_ANSWER]}

    def _reject(self, error: Unusable) -> None:
        self._rejected.append(self._line.redacted(str(error)))
        self._told.append(self._line.redacted(error.told))
        said = [self._said()] if self._answer else []
        self._asking.add([*said, {"role": "user", "content": correction(str(error))}])
