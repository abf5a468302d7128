"""The planner without a language model: it recognises fields, values and environments in the topic, by written rules.

The same topic always gives the same actions. It writes no code and claims no insight: predictions are hand-written
priors (`research.planner.priors`), and every assumption it makes stands in the turn's note. A topic it cannot read is
refused with a list of what it can study.
"""

from __future__ import annotations

from collections.abc import Sequence

from research.arms import Scalar, value_text
from research.errors import BadTopic
from research.near import meant_in
from research.planner.actions import (
    Action,
    Conclude,
    Constant,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedKnob,
    ProposedReplication,
    ProposedScreen,
)
from research.planner.choices import ALGORITHM
from research.planner.digest import Digest, EnvironmentFacts, FieldFacts, environment_facts, tunable_facts
from research.planner.priors import fears, predict, predict_best, prior_of
from research.planner.protocol import Check, PlannerTurn
from research.planner.requests import Heard, elsewhere, hear, impossible
from research.planner.rewards import FOR_RULES, names_reward
from research.planner.search import Search, plan_search, search_note
from research.planner.topic import Reading, read_topic
from research.planner.values import Contrast, Plan, plan_values

DEFAULT_ENVIRONMENT = "guess"
LONGEST_TOPIC = 2000
CONFIGURE_LLM = "set OPENAI_BASE_URL and OPENAI_API_KEY and pass --planner llm --planner-model NAME"
_SHOWN_TOPIC = 80


class RulesPlanner:
    """Plans by recognising names; see `research.planner.values` for the rules."""

    name = "rules"
    model: str | None = None

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        """Return the due action; BadTopic if the topic cannot be read, DesignRefused if `check` refuses."""
        if digest.stage == "conclude":
            return PlannerTurn(_conclusion(digest))
        subject = _Subject.of(digest)
        action: Action = subject.propose() if digest.stage == "propose" else subject.design()
        refused = check(action)
        if refused is not None:
            raise refused
        return PlannerTurn(action, note=subject.note())


def _conclusion(digest: Digest) -> Conclude:
    judged = "; ".join(f"{verdict.hypothesis} is {verdict.verdict}" for verdict in digest.verdicts)
    return Conclude(reason=f"Every hypothesis of the locked design has its verdict: {judged}."[:1000])


def environment_asked(topic: str) -> str:
    """Return the environment that a topic names, or the one that is played where it names none."""
    known = environment_facts()
    return _played(known, read_topic(hear(topic).question, tunable_facts(), known))


class _Subject:
    """A topic that was read and found to be runnable."""

    def __init__(self, digest: Digest, heard: Heard, reading: Reading, plan: Plan | Search) -> None:
        self._digest = digest
        self._heard = heard
        self._reading = reading
        self._plan = plan
        self._environment = _played(digest.environments, reading)
        titles = {facts.name: facts.title for facts in digest.environments}
        self._title = titles.get(self._environment, self._environment)

    @classmethod
    def of(cls, digest: Digest) -> _Subject:
        """Read the digest's topic; raise BadTopic."""
        topic = digest.topic
        if not topic.strip():
            raise BadTopic(f"expected a topic; found an empty one; {_what_can_be_studied(digest)}")
        if len(topic) > LONGEST_TOPIC:
            raise BadTopic(f"expected a topic of at most {LONGEST_TOPIC} characters; found {len(topic)}; shorten it")
        heard = hear(topic)
        if (wrong := impossible(heard.question)) is not None:
            raise BadTopic(wrong)
        reading = read_topic(heard.question, digest.fields, digest.environments)
        _check(reading, digest)
        if not reading.environments and (other := elsewhere(heard.question)) is not None:
            known = " or ".join(facts.name for facts in digest.environments)
            raise BadTopic(
                f"expected a question about what can be trained and measured here, {known}; found {other}, which "
                "is not here; name one of them"
            )
        facts = {known.name: known for known in digest.fields}
        plan = plan_search(heard.question, reading.asked, facts) or plan_values(reading.asked, facts)
        return cls(digest, heard, reading, plan)

    def propose(self) -> Propose:
        """Return one hypothesis for each treatment value, or that a search comes first."""
        if isinstance(self._plan, Search):
            return Propose(search=True)
        return Propose(
            hypotheses=tuple(
                self._hypothesis(contrast, treatment)
                for contrast in self._plan.contrasts
                for treatment in contrast.treatments
            )
        )

    def design(self) -> ProposeDesign:
        """Return the comparison or the search, with the constants the topic or its values ask for."""
        constants = dict(self._plan.constants)
        steps = constants.pop("steps", None)
        again = self._reading.again
        return ProposeDesign(
            environment=self._environment,
            steps=None if steps is None else int(steps),
            constants=tuple(Constant(field=name, value=value) for name, value in constants.items()),
            screen=self._screen(self._plan) if isinstance(self._plan, Search) else None,
            replication=ProposedReplication(environment=again) if again else None,
        )

    def note(self) -> str:
        """Return what was assumed, in sentences."""
        notes = list(self._heard.notes)
        if not self._reading.environments:
            notes.append(f"The topic names no environment; {self._environment} ({self._title}) is played.")
        if isinstance(self._plan, Search):
            notes.append(search_note(self._plan))
        else:
            notes += [_comparison_note(contrast) for contrast in self._plan.contrasts]
        if self._reading.again:
            notes.append(f"What is supported is tried once more in {self._reading.again}.")
        for name, value in self._plan.constants.items():
            why = self._plan.adjusted.get(name)
            notes.append(f"{name} is {value_text(value)} in all arms{f', {why}' if why else ''}.")
        if names_reward(self._digest.topic):
            notes.append(f"No reward is compared: {FOR_RULES}.")
        if self._reading.unread:
            notes.append(f"These numbers of the topic belong to no field and were not used: {self._unread()}.")
        notes.append(f"The smallest effect of interest is {self._digest.effect:g} of the hidden success.")
        notes.append("Success on hidden tasks after the last step is compared; predictions are hand-written priors.")
        return " ".join(notes)

    def _screen(self, search: Search) -> ProposedScreen:
        low, high, probability = predict_best([knob.field for knob in search.knobs])
        return ProposedScreen(
            knobs=tuple(ProposedKnob(field=knob.field, values=knob.values) for knob in search.knobs),
            confirm=search.confirm,
            predicted_low=low,
            predicted_high=high,
            probability=probability,
            smallest_effect=self._digest.effect,
        )

    def _unread(self) -> str:
        return ", ".join(self._reading.unread)[:200]

    def _hypothesis(self, contrast: Contrast, treatment: Scalar) -> ProposedHypothesis:
        low, high, probability = predict(contrast.field, rises=_rises(contrast, treatment), claim=contrast.claim)
        verb = "lowers" if contrast.claim == "decrease" else "raises"
        return ProposedHypothesis(
            mechanism=prior_of(contrast.field).because,
            variable=contrast.field,
            control=contrast.control,
            treatment=treatment,
            direction=contrast.claim or "increase",
            predicted_low=low,
            predicted_high=high,
            probability=probability,
            smallest_effect=self._digest.effect,
            falsifier=(
                f"On fresh seeds {contrast.field} = {value_text(treatment)} {verb} the success by less than "
                f"{self._digest.effect:g}, or not at all."
            ),
            confounds=fears(contrast.field),
        )


def _played(known: Sequence[EnvironmentFacts], reading: Reading) -> str:
    """Return the environment that is named, else the default, or another one where that is for the replication."""
    others = [facts.name for facts in known if facts.name != reading.again]
    return (*reading.environments, *([DEFAULT_ENVIRONMENT] if DEFAULT_ENVIRONMENT in others else others))[0]


def _rises(contrast: Contrast, treatment: Scalar) -> bool:
    """Return whether the treatment is the larger value; words have no order, and their priors no direction."""
    if isinstance(treatment, str) or isinstance(contrast.control, str):
        return True
    return treatment > contrast.control


def _check(reading: Reading, digest: Digest) -> None:
    """Refuse a reading that leaves nothing to compare, or too much."""
    if reading.unknown is not None:
        known = next(facts for facts in digest.fields if facts.name == ALGORITHM)
        raise BadTopic(
            f"expected an algorithm among {', '.join(map(value_text, known.ladder))}; found {reading.unknown!r}; "
            "name one of them"
        )
    if not reading.asked and reading.alone:
        other = next(value for facts in digest.fields for value in facts.ladder[1:] if reading.alone in facts.ladder)
        raise BadTopic(
            f"expected something to compare; found one arm, {reading.alone}; name what it is compared with, such as "
            f"'{other} vs {reading.alone}'"
        )
    if not reading.asked:
        about = f"{FOR_RULES}; " if names_reward(digest.topic) else ""
        raise BadTopic(
            f"expected a topic that names something to vary; found {_quoted(digest.topic)}"
            f"{meant_in(digest.topic, [facts.name for facts in digest.fields])}; {about}"
            f"{_what_can_be_studied(digest)}"
        )
    if len(reading.environments) > 1:
        named = " and ".join(reading.environments)
        raise BadTopic(f"expected one environment in the topic; found {named}; name one of them")


def _comparison_note(contrast: Contrast) -> str:
    treatments = " and ".join(value_text(value) for value in contrast.treatments)
    open_question = " (no direction of the effect is named: an open question)" if contrast.claim is None else ""
    return f"{contrast.field} {value_text(contrast.control)} is compared with {treatments}{open_question}."


def _what_can_be_studied(digest: Digest) -> str:
    fields = ", ".join(_named(facts) for facts in digest.fields)
    played = " or ".join(facts.name for facts in digest.environments)
    return f"name one of {fields}, on {played}; or {CONFIGURE_LLM}"


def _named(facts: FieldFacts) -> str:
    """Return a field's name, with the first synonym that says more than the name does."""
    plain = facts.name.replace("_", " ")
    more = next((text for text in facts.synonyms if plain not in text.replace("-", " ")), None)
    return facts.name if more is None or plain in facts.synonyms else f"{facts.name} ({more})"


def _quoted(topic: str) -> str:
    return repr(topic if len(topic) <= _SHOWN_TOPIC else topic[: _SHOWN_TOPIC - 1] + "…")
