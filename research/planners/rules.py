"""The planner without a language model: it reads topics by written rules.

The same topic always gives the same actions. It writes no code and claims no insight: predictions are hand-written
priors (`research.planners.follow_up`), and every assumption it makes stands in the turn's note. A topic it cannot
read is refused with a list of what it can study.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from research.errors import BadTopic
from research.installation.base_job import find_fixed_fields, require_agreement
from research.planners import unsupported
from research.planners.context import EnvironmentSpec, FieldSpec, PlannerContext, environment_specs, field_specs
from research.planners.follow_up import (
    UNDIRECTED,
    UNSEEN_CONFOUNDERS,
    Search,
    SearchDimension,
    asks_for_anything,
    describe_search,
    fields_that_matter,
    find_prior,
    follow_ups,
    plan_search,
    predict,
    predict_best,
    remove_count,
    scale_to_metric,
)
from research.planners.history import CampaignFacts
from research.planners.lexicon import Claim
from research.planners.protocol import Check, PlannerTurn
from research.planners.topic import ALGORITHM, ParsedField, ParsedTopic, normalize_topic, parse_topic
from research.planners.unsupported import (
    Role,
    SplitTopic,
    UnparsedSpan,
    asks_trend,
    remove_trend,
    seeks_equivalence,
    split_requests,
)
from research.planners.values import Contrast, ValuePlan, plan_values, require_interaction, require_joint_fields
from research.proposals.actions import (
    Action,
    Conclude,
    Constant,
    FieldValue,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedKnob,
    ProposedReplication,
    ProposedScreen,
    Setting,
)
from research.proposals.arms import EXAMPLE, Scalar, value_text
from research.proposals.flags import RequestedComparison, Shape
from research.proposals.metric_choice import (
    RequestedMetric,
    default_effect,
    find_metric,
    find_threshold,
    format_difference,
    remove_metric_words,
)
from research.proposals.reward_code import FOR_RULES, names_reward
from research.text import suggest_from_text
from studies.records.design import CONFIGURATION, MODEL, SUCCESS, Metric
from studies.records.statements import metric_name, outcome_name
from swarm.job import Job

DEFAULT_ENVIRONMENT = "guess"
_OF_LENGTH = ("steps", "episodes_per_step")
LONGEST_TOPIC = 2000
CONFIGURE_LLM = "set OPENAI_BASE_URL and OPENAI_API_KEY and pass --planner llm --planner-model NAME"
_SHOWN_TOPIC = 80
_NO_IDEA = 0.15
"""Ends of the prediction of an interaction, to both sides: no prior was written of any."""
_SEVERAL_MODELS = re.compile(r"\b(?:models|llms|checkpoints)\b", re.IGNORECASE)


class RulesPlanner:
    """Plans by recognising names; see `research.planners.values` for the rules."""

    name = "rules"
    model: str | None = None

    def act(self, context: PlannerContext, check: Check) -> PlannerTurn:
        """Return the due action, with its refusal if `check` refuses it; BadTopic if the topic cannot be read."""
        if context.stage == "conclude":
            return PlannerTurn(_conclude(context))
        if context.campaign is not None:
            return _plan_next_round(context, context.campaign, check)
        topic = _TopicPlan.of(context)
        action: Action = topic.propose() if context.stage == "propose" else topic.design()
        return PlannerTurn(
            action, note=topic.describe_assumptions(), not_tested=topic.find_untested(), refused=check(action)
        )


def _plan_next_round(context: PlannerContext, campaign: CampaignFacts, check: Check) -> PlannerTurn:
    """Return the next round's action: the first question of the rules that is not refused, or that none is left."""
    first: PlannerTurn | None = None
    for found in islice(follow_ups(context, campaign), len(campaign.refused), None):
        topic = _TopicPlan(context, SplitTopic("", ()), ParsedTopic((), (found.environment,), ()), found.plan)
        action: Action = topic.propose()
        if context.stage == "design":
            if not _matches_hypotheses(context, topic.propose()):
                continue
            action = topic.design()
        turn = PlannerTurn(action, note=f"{found.why} {topic.describe_assumptions()}", refused=check(action))
        if turn.refused is None or context.stage == "design":
            return turn
        first = first or turn
    return first or PlannerTurn(Conclude(reason="The rules have no further question about what was asked."))


def _matches_hypotheses(context: PlannerContext, proposal: Propose) -> bool:
    proposed = [(entry.variable, *entry.sides) for entry in proposal.hypotheses]
    return proposed == [(entry.variable, entry.control, entry.treatment) for entry in context.hypotheses]


def _conclude(context: PlannerContext) -> Conclude:
    judged = "; ".join(f"{verdict.hypothesis} is {verdict.verdict}" for verdict in context.verdicts)
    return Conclude(reason=f"Every hypothesis of the locked design has its verdict: {judged}."[:1000])


def choose_environment(topic: str, wanted: RequestedComparison) -> str:
    known = environment_specs()
    if wanted.environment is not None or wanted.vary:
        return wanted.environment or DEFAULT_ENVIRONMENT
    said = find_metric(topic)
    read = topic if said is None else said.question
    question = split_requests(wanted.models.replace_paths(read)).question
    return _pick_environment(known, parse_topic(question, field_specs(models=wanted.models), known))


def require_readable(
    topic: str, wanted: RequestedComparison, base: Job | None = None, asked: RequestedMetric | None = None
) -> None:
    """Raise BadTopic for a topic that these rules cannot plan over a base job, before anything is begun."""
    fields = field_specs(base, wanted.models)
    digest = PlannerContext(
        topic=topic, seconds_left=0.0, seconds_per_run=0.0, parallel=1, wanted=wanted, fields=fields,
        fixed=find_fixed_fields(base or Job()), requested_metric=asked,
    )  # fmt: skip
    plan = _TopicPlan.of(digest)
    require_agreement(base, plan.field_values())


class _TopicPlan:
    """A topic that was read, and the comparison or search that it asks for."""

    def __init__(
        self, context: PlannerContext, split: SplitTopic, reading: ParsedTopic, plan: ValuePlan | Search
    ) -> None:
        self._context = context
        self._split = split
        self._reading = reading
        self._plan = plan
        self._environment = _pick_environment(context.environments, reading)
        titles = {facts.name: facts.title for facts in context.environments}
        self._title = titles.get(self._environment, self._environment)

    @classmethod
    def of(cls, context: PlannerContext) -> _TopicPlan:
        topic = context.topic
        if not topic.strip():
            raise BadTopic(f"expected a topic; found an empty one; {_describe_options(context)}")
        if len(topic) > LONGEST_TOPIC:
            raise BadTopic(f"expected a topic of at most {LONGEST_TOPIC} characters; found {len(topic)}; shorten it")
        facts = {known.name: known for known in context.fields}
        if context.wanted.vary:
            reading = _parse_flags(context.wanted)
            plan_of_flags = plan_values(reading.asked, facts, shape=context.wanted.shape)
            return cls(context, SplitTopic("", ()), reading, plan_of_flags)
        split, reading = _parse_topic(context)
        search = plan_search(split.question, reading.asked, facts)
        if search is not None and split.matched == "episodes":
            raise BadTopic(
                "expected a comparison where all arms train on as many episodes; found a search, which trains its "
                "candidates for as many steps; name the batches, such as 'batch size 64 vs 256 at equal episodes'"
            )
        plan = search or plan_values(reading.asked, facts, split.matched, _find_shape(context.topic, reading))
        return cls(context, split, reading, plan)

    def field_values(self) -> dict[str, list[Any]]:
        held = {name: [value] for name, value in self._plan.constants.items()}
        if isinstance(self._plan, Search):
            return held
        compared = {entry.field: [entry.control, *entry.treatments] for entry in self._plan.contrasts}
        return {name: values for name, values in (held | compared).items() if name != MODEL}

    def propose(self) -> Propose:
        if isinstance(self._plan, Search):
            return Propose(search=True)
        contrasts = self._plan.contrasts
        if self._plan.shape == "together":
            return Propose(
                hypotheses=tuple(self._make_joint(contrasts, at) for at in range(len(contrasts[0].treatments)))
            )
        if self._plan.shape == "interaction":
            return Propose(hypotheses=(self._make_interaction(*contrasts),))
        if self._plan.shape == "trend":
            rungs = contrasts[0].control, *contrasts[0].treatments
            return Propose(
                hypotheses=(self._make_hypothesis(contrasts[0], rungs[-1]).model_copy(update={"ladder": rungs}),)
            )
        return Propose(
            hypotheses=tuple(
                self._make_hypothesis(contrast, treatment)
                for contrast in contrasts
                for treatment in contrast.treatments
            )
        )

    def design(self) -> ProposeDesign:
        constants = dict(self._plan.constants)
        steps = constants.pop("steps", None)
        again = self._reading.again
        return ProposeDesign(
            environment=self._environment,
            steps=None if steps is None else int(steps),
            constants=tuple(Constant(field=name, value=value) for name, value in constants.items()),
            screen=self._make_screen(self._plan) if isinstance(self._plan, Search) else None,
            replication=ProposedReplication(environment=again) if again else None,
        )

    def describe_assumptions(self) -> str:
        notes: list[str] = []
        if asks_for_anything(self._split.question) and isinstance(self._plan, Search):
            notes.append("The topic names no field; those of which most is expected are searched.")
        if not self._reading.environments:
            notes.append(f"The topic names no environment; {self._environment} ({self._title}) is played.")
        if isinstance(self._plan, Search):
            notes.append(describe_search(self._plan))
        else:
            notes += _comparison_notes(self._plan)
        if self._reading.again:
            notes.append(f"What is supported is tried once more in {self._reading.again}.")
        for name, value in self._plan.constants.items():
            why = self._plan.adjusted.get(name)
            where = "the control; in the others it follows the batch" if self._follows(name) else "all arms"
            notes.append(f"{name} is {value_text(value)} in {where}{f', {why}' if why else ''}.")
        if names_reward(self._context.topic):
            notes.append(f"No reward is compared: {FOR_RULES}.")
        if self._context.requested_metric is None or self._context.effect_given:
            notes.append(
                f"The smallest effect of interest is {self._describe_effect()} of the {self._describe_metric()}."
            )
        notes.append(f"{self._describe_comparison()}; predictions are hand-written priors.")
        return " ".join(notes)

    def _describe_metric(self) -> str:
        return outcome_name(MODEL if self._varies_model() else "", self._requested_metric())

    def _requested_metric(self) -> Metric | None:
        return None if self._context.requested_metric is None else self._context.metric

    def _plan_metric(self) -> Metric:
        """Return the metric as it is of the plan's own jobs: a time is cut where the longest of them ends."""
        metric, usual = self._context.metric, {facts.name: facts.default for facts in self._context.fields}
        if not metric.unit or metric.horizon is None:
            return metric
        compared = {
            name: list(map(float, values)) for name, values in self.field_values().items() if name in _OF_LENGTH
        }
        sides = [compared.get(name, [float(usual[name])]) for name in _OF_LENGTH]
        longest = math.prod(map(max, sides))
        if self._shape == "together" and len(sides[0]) == len(sides[1]):
            longest = max(steps * batch for steps, batch in zip(*sides, strict=True))
        horizon = metric.horizon * longest / math.prod(float(usual[name]) for name in _OF_LENGTH)
        return metric.model_copy(update={"horizon": horizon, "worst": horizon})

    def _describe_effect(self) -> str:
        metric = self._plan_metric()
        return format_difference(metric, self._context.effect if self._context.effect_given else default_effect(metric))

    @property
    def _shape(self) -> Shape:
        return "apart" if isinstance(self._plan, Search) else self._plan.shape

    def _varies_model(self) -> bool:
        return not isinstance(self._plan, Search) and any(entry.field == MODEL for entry in self._plan.contrasts)

    def _describe_comparison(self) -> str:
        if (metric := self._requested_metric()) is not None:
            better = "higher" if metric.higher_is_better else "lower"
            named = self._describe_metric()
            return f"{named[:1].upper()}{named[1:]} is compared, {better} being better"
        if self._varies_model():
            return (
                "What each run gains is compared, its success on hidden tasks after the last step less that before "
                "the first, as the models begin differently"
            )
        return "Success on hidden tasks after the last step is compared"

    def _follows(self, name: str) -> bool:
        """Return whether a constant is the control's alone, as all arms train on as many episodes."""
        contrasts = () if isinstance(self._plan, Search) else self._plan.contrasts
        return name == "steps" and any(contrast.matched == "episodes" for contrast in contrasts)

    def find_untested(self) -> tuple[str, ...]:
        asked = self._context.requested_metric
        secondary = unsupported.secondary_metrics(
            remove_metric_words(self._context.topic, asked), judged=asked is not None
        )
        return (
            *(f"'{entry.text}'" for entry in self._reading.left),
            *(f"'{text}': {self._describe_reading(difference)}" for text, difference in self._reading.read_as),
            *(f"'{entry.text}': {entry.way}" for entry in secondary),
            *(
                f"{first} against {second}: each is compared with the control, not one with the other"
                for first, second in self._compared_fields()
            ),
            *self._split.without_effect,
        )

    def _describe_reading(self, difference: str) -> str:
        """Return how a word differs from what is compared, which is hidden success unless somebody asked for more."""
        metric = self._requested_metric()
        return difference if metric is None or metric.key == SUCCESS else f"the {metric_name(metric)} is compared"

    def _compared_fields(self) -> tuple[tuple[str, str], ...]:
        if isinstance(self._plan, Search) or self._shape != "apart":
            return ()
        compared = {contrast.field for contrast in self._plan.contrasts}
        return tuple(pair for pair in self._reading.compared_fields if compared.issuperset(pair))

    def _make_screen(self, search: Search) -> ProposedScreen:
        low, high, probability = predict_best([knob.field for knob in search.knobs])
        low, high = scale_to_metric(low, high, self._plan_metric())
        return ProposedScreen(
            knobs=tuple(map(self._make_knob, search.knobs)),
            confirm=search.confirm,
            predicted_low=low,
            predicted_high=high,
            probability=probability,
            smallest_effect=self._find_effect(),
        )

    def _make_knob(self, knob: SearchDimension) -> ProposedKnob:
        usual = next(facts.default for facts in self._context.fields if facts.name == knob.field)
        return ProposedKnob(
            field=knob.field, values=knob.values, control=None if knob.control == usual else knob.control
        )

    def _find_effect(self) -> float | None:
        """Return the study's smallest effect; None for a default that follows from how long the design trains."""
        return self._context.effect if self._context.effect_given or not self._context.metric.unit else None

    def _make_hypothesis(self, contrast: Contrast, treatment: Scalar) -> ProposedHypothesis:
        expected = predict(contrast.field, rises=_is_increase(contrast, treatment), claim=contrast.claim)
        sides = contrast.field, contrast.control, treatment
        return self._make_claim(sides, expected, contrast.claim, [contrast]).model_copy(
            update={"matched": contrast.matched}
        )

    def _make_joint(self, contrasts: Sequence[Contrast], at: int, *, sharing: bool = True) -> ProposedHypothesis:
        """Return the claim on an arm that differs in all the fields; its direction is open where none is shared."""
        claim = next((contrast.claim for contrast in contrasts if contrast.claim is not None), None)
        known = [
            predict(contrast.field, rises=_is_increase(contrast, contrast.treatments[at]), claim=claim)
            for contrast in contrasts
        ]
        lows, highs, chances = zip(*known, strict=True)
        control = tuple(FieldValue(field=entry.field, value=entry.control) for entry in contrasts)
        treatment = tuple(FieldValue(field=entry.field, value=entry.treatments[at]) for entry in contrasts)
        expected = min(lows), max(highs), sum(chances) / len(chances)
        if not sharing:
            expected, claim = (-_NO_IDEA, _NO_IDEA, UNDIRECTED), None
        return self._make_claim((CONFIGURATION, control, treatment), expected, claim, contrasts)

    def _make_interaction(self, first: Contrast, other: Contrast) -> ProposedHypothesis:
        claim = self._make_joint((first, other), 0, sharing=False)
        size = "larger" if claim.direction == "increase" else "smaller"
        falsifier = (
            f"On fresh seeds the effect of {first.field} is {size} with "
            f"{_format_setting(other.field, other.treatments[0])} than "
            f"with {_format_setting(other.field, other.control)} by less than {self._describe_effect()}, or not at all."
        )
        return claim.model_copy(update={"moderator": other.field, "falsifier": falsifier})

    def _make_claim(
        self,
        sides: tuple[str, Setting, Setting],
        expected: tuple[float, float, float],
        claim: Claim | None,
        about: Sequence[Contrast],
    ) -> ProposedHypothesis:
        """Return the hypothesis on a variable with its two values, `expected` as (low, high, probability)."""
        variable, control, treatment = sides
        metric = self._plan_metric()
        low, high = scale_to_metric(*expected[:2], metric)
        better = claim != "decrease"
        direction: Claim = "increase" if better == metric.higher_is_better else "decrease"
        verb = "lowers" if direction == "decrease" else "raises"
        judged = (
            ("the gain" if variable == MODEL else "the success") if self._requested_metric() is None else "the metric"
        )
        return ProposedHypothesis(
            mechanism=" ".join(dict.fromkeys(find_prior(contrast.field).because for contrast in about)),
            variable=variable,
            control=control,
            treatment=treatment,
            direction=direction,
            predicted_low=low,
            predicted_high=high,
            probability=expected[2],
            smallest_effect=self._find_effect(),
            falsifier=f"On fresh seeds {_format_setting(variable, treatment)} {verb} {judged} by "
            f"less than {self._describe_effect()}, or not at all.",
            confounds=tuple(fear for contrast in about for fear in UNSEEN_CONFOUNDERS.get(contrast.field, ())),
            sought="equivalence"
            if seeks_equivalence(remove_metric_words(self._context.topic, self._context.requested_metric))
            else "either"
            if claim is None
            else "difference",
        )


def _format_setting(variable: str, value: Setting) -> str:
    if isinstance(value, tuple):
        return ", ".join(_format_setting(entry.field, entry.value) for entry in value)
    return f"{variable} = {value_text(value)}"


def _find_shape(topic: str, reading: ParsedTopic) -> Shape:
    if reading.interaction:
        return "interaction"
    if reading.joint_fields:
        return "together"
    return "trend" if asks_trend(topic) else "apart"


def _parse_flags(wanted: RequestedComparison) -> ParsedTopic:
    varied = tuple(ParsedField(name, values) for name, values in wanted.vary.items())
    held = tuple(ParsedField(name, (value,)) for name, value in wanted.held.items())
    played = (wanted.environment,) if wanted.environment is not None else ()
    return ParsedTopic((*varied, *held), played, ())


def _parse_topic(context: PlannerContext) -> tuple[SplitTopic, ParsedTopic]:
    topic = remove_metric_words(normalize_topic(context), context.requested_metric)
    environments = [facts.name for facts in context.environments]
    if (missing := unsupported.refusal(topic, environments, judged=context.requested_metric is not None)) is not None:
        raise BadTopic(missing)
    if context.requested_metric is None and (goal := find_threshold(topic)) is not None and goal.reached:
        raise BadTopic(
            f"expected what is asked of {goal.said!r}; found no word for it; ask what gets there faster, or in fewer "
            f"episodes (--metric episodes:{goal.share:g}), or what raises hidden success"
        )
    split = split_requests(topic)
    if split.unmatched is not None:
        raise BadTopic(
            f"expected arms with equal training steps or equal training episodes; found {split.unmatched!r}, which "
            "cannot be held equal; leave it out: the report tells what the arms do not share"
        )
    question = unsupported.remove_secondary_metrics(
        remove_count(split.question), judged=context.requested_metric is not None
    )
    question = remove_trend(question)
    reading = parse_topic(question, context.fields, context.environments)
    if split.matched == "episodes":
        split, reading = _match_episodes(split, reading)
    if reading.interaction:
        reading = replace(reading, asked=require_interaction(reading.asked), joint_fields=(), compared_fields=())
    if reading.joint_fields:
        reading = replace(reading, asked=require_joint_fields(reading.asked, reading.joint_fields))
    if not reading.asked and asks_for_anything(split.question):
        reading = replace(reading, asked=fields_that_matter(context.fields))
    _check_topic(reading, context)
    return split, _set_environment(
        reading, context.wanted.environment, "the job's" if "environment" in context.fixed else "--env"
    )


def _match_episodes(split: SplitTopic, reading: ParsedTopic) -> tuple[SplitTopic, ParsedTopic]:
    """Return what was read where arms are to have as many episodes; steps and batches that make as many say it all."""
    values = {entry.field: entry.values for entry in reading.asked}
    steps, batches = (values.get(name, ()) for name in _OF_LENGTH)
    as_many = {float(n) * float(size) for n, size in zip(steps, batches, strict=False)}
    if set(reading.joint_fields) == set(_OF_LENGTH) and len(steps) == len(batches) and len(as_many) == 1:
        return replace(split, matched="steps"), reading
    return split, replace(reading, joint_fields=())


def _set_environment(reading: ParsedTopic, wanted: str | None, by: str) -> ParsedTopic:
    if wanted is None:
        return reading
    if others := [name for name in (*reading.environments, reading.again) if name not in (wanted, None)]:
        raise BadTopic(
            f"expected one environment; found {by} {wanted} and a topic that names {others[0]}; leave one of them out"
        )
    return replace(reading, environments=(wanted,))


def _pick_environment(known: Sequence[EnvironmentSpec], reading: ParsedTopic) -> str:
    """Return the environment that is named, else the default, or another one where that is for the replication."""
    others = [facts.name for facts in known if facts.name != reading.again]
    return (*reading.environments, *([DEFAULT_ENVIRONMENT] if DEFAULT_ENVIRONMENT in others else others))[0]


def _is_increase(contrast: Contrast, treatment: Scalar) -> bool:
    """Return whether the treatment is the larger value; words have no order, and their priors no direction."""
    if isinstance(treatment, str) or isinstance(contrast.control, str):
        return True
    return treatment > contrast.control


def _check_topic(reading: ParsedTopic, context: PlannerContext) -> None:
    if not reading.english:
        raise BadTopic(unsupported.refuse_language(_quote_topic(context.topic)))
    if reading.unknown is not None:
        known = next(facts for facts in context.fields if facts.name == ALGORITHM)
        raise BadTopic(
            f"expected an algorithm among {', '.join(map(value_text, known.ladder))}; found {reading.unknown!r}; "
            "name one of them"
        )
    if reading.asked and (said := _find_refusal(reading.left, context)) is not None:
        raise BadTopic(said)
    if not reading.asked and reading.alone:
        other = next(value for facts in context.fields for value in facts.ladder[1:] if reading.alone in facts.ladder)
        raise BadTopic(
            f"expected something to compare; found one arm, {reading.alone}; name what it is compared with, such as "
            f"'{other} vs {reading.alone}'"
        )
    if not reading.asked:
        about = f"{FOR_RULES}; " if names_reward(context.topic) else ""
        raise BadTopic(
            f"expected a topic that names something to vary; found {_quote_topic(context.topic)}"
            f"{suggest_from_text(context.topic, [facts.name for facts in context.fields])}; {about}"
            f"{_describe_options(context)}"
        )
    if len(reading.environments) > 1:
        named = " and ".join(reading.environments)
        raise BadTopic(f"expected one environment in the topic; found {named}; name one of them")


def _find_refusal(left: Sequence[UnparsedSpan], context: PlannerContext) -> str | None:
    for role, said in _UNFIT.items():
        found = [entry for entry in left if entry.role == role]
        if found:
            named = " and ".join(dict.fromkeys(_quote_topic(entry.text) for entry in found))
            played = " or ".join(facts.name for facts in context.environments)
            return said.format(found=named, meant=found[0].meant, environments=played)
    return None


_UNFIT: Mapping[Role, str] = {
    "near": "expected names of fields and environments; found {found}{meant}; correct it, or leave it out",
    "unvaried": (
        "expected fields that a study varies or holds at a value; found {found}, which it does not; leave it out, or "
        "name one of those in `ajet study plan --help`"
    ),
    "number": (
        "expected values of fields; found {found}, which belongs to none that is named; write the field beside it, "
        "such as 'group size 4 vs 16', or leave it out"
    ),
    "arm": (
        "expected arms that a study can have; found {found} beside what is compared, which is no value of a field; "
        "leave it out, or name the field and its value"
    ),
    "condition": (
        "expected conditions that a study can set: a value of a field, or an environment ({environments}); found "
        "{found}; leave it out, or name the field and its value"
    ),
}
"""What is said of words that name something and are in no field of the plan, by their place in the topic."""


def _comparison_notes(plan: ValuePlan) -> list[str]:
    if plan.shape == "apart":
        return [_comparison_note(contrast) for contrast in plan.contrasts]
    if plan.shape == "trend":
        rungs = ", ".join(map(value_text, (plan.contrasts[0].control, *plan.contrasts[0].treatments)))
        return [f"{plan.contrasts[0].field} is trained at {rungs}, and the one claim is on their straight line."]
    if plan.shape == "interaction":
        first, second = (f"{entry.field} {value_text(entry.control)} and {value_text(entry.treatments[0])}"
                         for entry in plan.contrasts)  # fmt: skip
        return [f"{first} are crossed with {second}: four arms, and twice the variance of a plain comparison."]
    control = ", ".join(f"{entry.field} {value_text(entry.control)}" for entry in plan.contrasts)
    treatments = (
        ", ".join(f"{entry.field} {value_text(entry.treatments[at])}" for entry in plan.contrasts)
        for at in range(len(plan.contrasts[0].treatments))
    )
    return [f"{control} is compared with {' and with '.join(treatments)}: the fields differ together."]


def _comparison_note(contrast: Contrast) -> str:
    treatments = " and ".join(value_text(value) for value in contrast.treatments)
    open_question = " (no direction of the effect is named: an open question)" if contrast.claim is None else ""
    return f"{contrast.field} {value_text(contrast.control)} is compared with {treatments}{open_question}."


def _describe_options(context: PlannerContext) -> str:
    fields = ", ".join(_field_title(facts) for facts in context.fields)
    played = " or ".join(facts.name for facts in context.environments)
    models = f"compare models by their folders, {EXAMPLE}; " if _SEVERAL_MODELS.search(context.topic) else ""
    return f"{models}name one of {fields}, on {played}; or {CONFIGURE_LLM}"


def _field_title(facts: FieldSpec) -> str:
    plain = facts.name.replace("_", " ")
    more = next((text for text in facts.synonyms if plain not in text.replace("-", " ")), None)
    return facts.name if more is None or plain in facts.synonyms else f"{facts.name} ({more})"


def _quote_topic(topic: str) -> str:
    return repr(topic if len(topic) <= _SHOWN_TOPIC else topic[: _SHOWN_TOPIC - 1] + "…")
