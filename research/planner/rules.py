"""The planner without a language model: it recognises fields, values and environments in the topic, by written rules.

The same topic always gives the same actions. It writes no code and claims no insight: predictions are hand-written
priors (`research.planner.priors`), and every assumption it makes stands in the turn's note. A topic it cannot read is
refused with a list of what it can study.
"""

from __future__ import annotations

from research.arms import Scalar, value_text
from research.errors import BadTopic, DesignRefused
from research.planner.actions import MOST_SEEDS, Action, Conclude, Constant, Propose, ProposeDesign, ProposedHypothesis
from research.planner.choices import ALGORITHM
from research.planner.digest import Digest, FieldFacts
from research.planner.priors import predict, prior_of
from research.planner.protocol import Check, PlannerTurn
from research.planner.rewards import FOR_RULES, names_reward
from research.planner.topic import Reading, read_topic
from research.planner.values import Contrast, Plan, plan_values

DEFAULT_ENVIRONMENT = "guess"
LONGEST_TOPIC = 2000
CONFIGURE_LLM = "set OPENAI_BASE_URL and OPENAI_API_KEY and pass --planner llm --model NAME"
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
            raise DesignRefused(refused)
        return PlannerTurn(action, note=subject.note())


def _conclusion(digest: Digest) -> Conclude:
    judged = "; ".join(f"{verdict.hypothesis} is {verdict.verdict}" for verdict in digest.verdicts)
    return Conclude(reason=f"Every hypothesis of the locked design has its verdict: {judged}."[:1000])


class _Subject:
    """A topic that was read and found to be runnable."""

    def __init__(self, topic: str, reading: Reading, plan: Plan, environment: str, title: str) -> None:
        self._topic = topic
        self._reading = reading
        self._plan = plan
        self._environment = environment
        self._title = title

    @classmethod
    def of(cls, digest: Digest) -> _Subject:
        """Read the digest's topic; raise BadTopic."""
        topic = digest.topic
        if not topic.strip():
            raise BadTopic(f"expected a topic; found an empty one; {_what_can_be_studied(digest)}")
        if len(topic) > LONGEST_TOPIC:
            raise BadTopic(f"expected a topic of at most {LONGEST_TOPIC} characters; found {len(topic)}; shorten it")
        reading = read_topic(topic, digest.fields, digest.environments)
        if reading.unknown is not None:
            known = next(facts for facts in digest.fields if facts.name == ALGORITHM)
            raise BadTopic(
                f"expected an algorithm among {', '.join(map(value_text, known.ladder))}; found {reading.unknown!r}; "
                "name one of them"
            )
        if not reading.asked:
            about = f"{FOR_RULES}; " if names_reward(topic) else ""
            raise BadTopic(
                f"expected a topic that names something to vary; found {_quoted(topic)}; {about}"
                f"{_what_can_be_studied(digest)}"
            )
        if len(reading.environments) > 1:
            named = " and ".join(reading.environments)
            raise BadTopic(f"expected one environment in the topic; found {named}; name one of them")
        plan = plan_values(reading.asked, {facts.name: facts for facts in digest.fields})
        environment = reading.environments[0] if reading.environments else DEFAULT_ENVIRONMENT
        titles = {facts.name: facts.title for facts in digest.environments}
        return cls(topic, reading, plan, environment, titles.get(environment, environment))

    def propose(self) -> Propose:
        """Return one hypothesis for each treatment value."""
        return Propose(
            hypotheses=tuple(
                self._hypothesis(contrast, treatment)
                for contrast in self._plan.contrasts
                for treatment in contrast.treatments
            )
        )

    def design(self) -> ProposeDesign:
        """Return the wish for as many seeds as can be had, with the constants the topic or its values ask for."""
        constants = dict(self._plan.constants)
        steps = constants.pop("steps", None)
        return ProposeDesign(
            environment=self._environment,
            seeds_per_arm=MOST_SEEDS,
            steps=None if steps is None else int(steps),
            constants=tuple(Constant(field=name, value=value) for name, value in constants.items()),
        )

    def note(self) -> str:
        """Return what was assumed, in sentences."""
        notes = []
        if not self._reading.environments:
            notes.append(f"The topic names no environment; {self._environment} ({self._title}) is played.")
        notes += [_comparison_note(contrast) for contrast in self._plan.contrasts]
        for name, value in self._plan.constants.items():
            why = self._plan.adjusted.get(name)
            notes.append(f"{name} is {value_text(value)} in all arms{f', {why}' if why else ''}.")
        if names_reward(self._topic):
            notes.append(f"No reward is compared: {FOR_RULES}.")
        if self._reading.unread:
            notes.append(f"These numbers of the topic belong to no field and were not used: {self._unread()}.")
        notes.append("Success on hidden tasks after the last step is compared; predictions are hand-written priors.")
        return " ".join(notes)

    def _unread(self) -> str:
        return ", ".join(self._reading.unread)[:200]

    def _hypothesis(self, contrast: Contrast, treatment: Scalar) -> ProposedHypothesis:
        low, high, probability = predict(contrast.field, rises=_rises(contrast, treatment), claim=contrast.claim)
        verb = "lowers" if contrast.claim == "decrease" else "raises"
        return ProposedHypothesis(
            statement=(
                f"{contrast.field} = {value_text(treatment)} {verb} the hidden-task success in {self._title}, "
                f"compared with {contrast.field} = {value_text(contrast.control)}."
            ),
            mechanism=prior_of(contrast.field).because,
            variable=contrast.field,
            control=contrast.control,
            treatment=treatment,
            direction=contrast.claim or "increase",
            predicted_low=low,
            predicted_high=high,
            probability=probability,
        )


def _rises(contrast: Contrast, treatment: Scalar) -> bool:
    """Return whether the treatment is the larger value; words have no order, and their priors no direction."""
    if isinstance(treatment, str) or isinstance(contrast.control, str):
        return True
    return treatment > contrast.control


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
