"""The planner without a language model: it reads topics by written rules.

The same topic always gives the same actions. It writes no code and claims no insight: predictions are hand-written
priors (`research.planners.follow_up`), and every assumption it makes stands in the turn's note.
"""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

from research.errors import BadTopic
from research.installation.base_job import find_fixed_fields, require_agreement
from research.planners import follow_up
from research.planners.context import Check, PlannerContext, PlannerTurn, field_specs
from research.planners.lexicon import DEFAULT_ENVIRONMENT
from research.planners.memory import find_answered
from research.planners.tools import describe_finding
from research.planners.topic import judge_by, parse_topic, refuse_left
from research.planners.values import Contrast, ValuePlan, check_values, plan_search, plan_values
from research.proposals import actions
from research.proposals.arms import Scalar, value_text
from research.proposals.flags import ParsedTopic, RequestedComparison
from research.proposals.metric_choice import default_effect, format_difference
from studies.records.design import CONFIGURATION, MODEL, Metric
from studies.records.statements import model_name, outcome_name
from swarm.job import Job, tunables

_OF_LENGTH = ("steps", "episodes_per_step")
_NO_IDEA = 0.15
"""Ends of the prediction of an interaction, to both sides: no prior was written of any."""


class RulesPlanner:
    """Plans what the grammar of topics understood (`research.planners.topic`), or what flags ask for."""

    name = "rules"
    model: str | None = None

    def act(self, context: PlannerContext, check: Check) -> PlannerTurn:
        """Return the due action, with its refusal if `check` refuses it; BadTopic if the topic cannot be read."""
        if context.stage == "conclude":
            judged = "; ".join(f"{verdict.hypothesis} is {verdict.verdict}" for verdict in context.verdicts)
            reason = f"Every hypothesis of the locked design has its verdict: {judged}."
            return PlannerTurn(actions.Conclude(reason=reason[:1000]))
        action: actions.Action
        if (campaign := context.campaign) is not None:
            first: PlannerTurn | None = None
            for found in islice(follow_up.FollowUpFinder(context, campaign).find(), len(campaign.refused), None):
                plan = _TopicPlan(context, ParsedTopic(environment=found.environment), found.plan)
                action = proposed = plan.propose()
                if context.stage == "design":
                    sides = [(entry.variable, *entry.sides) for entry in proposed.hypotheses]
                    if sides != [(entry.variable, entry.control, entry.treatment) for entry in context.hypotheses]:
                        continue
                    action = plan.design()
                turn = PlannerTurn(action, note=f"{found.why} {plan.describe_assumptions()}", refused=check(action))
                if turn.refused is None or context.stage == "design":
                    return turn
                first = first or turn
            nothing = "The rules have no further question about what was asked."
            return first or PlannerTurn(actions.Conclude(reason=nothing))
        plan = _TopicPlan.of(context, _read_topic(context))
        action = plan.propose() if context.stage == "propose" else plan.design()
        untested, note = tuple(f"{text!r}" for text in plan.parsed.left), plan.describe_assumptions()
        if (known := find_answered(context, action)) is not None:
            note = f"{note} The same was studied here before ({known.name}): {describe_finding(known)}.".lstrip()
        return PlannerTurn(action, note=note, not_tested=untested, refused=check(action))


def _read_topic(context: PlannerContext) -> ParsedTopic:
    """Return what flags ask, else the topic as it was parsed when the study began; older studies are parsed here."""
    if context.wanted.vary:
        return ParsedTopic.from_flags(context.wanted)
    if context.parsed is not None:
        return context.parsed
    model = model_name(context.fixed[MODEL]) if MODEL in context.fixed else ""
    parsed = parse_topic(context.topic, context.fields, context.environments, context.wanted, model)
    parsed = judge_by(parsed, context.requested_metric)
    if parsed.left:
        raise refuse_left(parsed, parsed.command(context.wanted), context.fields)
    return parsed


def require_plannable(
    topic: str, wanted: RequestedComparison, base: Job | None = None, parsed: ParsedTopic | None = None
) -> None:
    """Raise BadTopic for a question that these rules cannot plan over a base job, before anything is begun."""
    where = (parsed and parsed.environment) or wanted.environment or ""
    fields, fixed = field_specs(base, wanted.models, where), find_fixed_fields(base or Job())
    context = PlannerContext(topic, 0.0, 0.0, 1, wanted=wanted, fields=fields, fixed=fixed, parsed=parsed)
    require_agreement(base, _TopicPlan.of(context, _read_topic(context)).field_values())


class _TopicPlan:
    def __init__(self, context: PlannerContext, parsed: ParsedTopic, plan: ValuePlan) -> None:
        self._context = context
        self.parsed = parsed
        self._plan = plan
        self._environment = parsed.environment or DEFAULT_ENVIRONMENT
        self._usual = {facts.name: facts.default for facts in context.fields}
        self._metric = self._find_metric()
        self._named = context.metric if context.requested_metric is not None else None
        """The metric, where somebody asked for one."""

    @classmethod
    def of(cls, context: PlannerContext, parsed: ParsedTopic) -> "_TopicPlan":
        facts = {known.name: known for known in context.fields}
        if not parsed.confirm:
            plan = plan_values(parsed.vary, parsed.held, facts, parsed.claim, parsed.matched, parsed.shape)
            return cls(context, parsed, plan)
        if context.wanted.mediators:
            raise BadTopic("expected --mediator beside settings that are compared; found a search; leave it out")
        knobs = []
        for name, candidates in parsed.vary.items():
            field, values = facts[name], check_values(name, candidates)
            unset = name in tunables() and Job.model_fields[name].default is None
            if unset and not field.given:
                values = tuple(value for value in values if value != field.default)  # it is no candidate of its own
            knobs.append(Contrast(name, field.default, values))
        held = {name: check_values(name, (value,))[0] for name, value in parsed.held.items()}
        return cls(context, parsed, plan_search(knobs, held, facts, parsed.confirm))

    def _find_metric(self) -> Metric:
        """Return the metric as it is of the plan's own jobs: a time is cut where the longest of them ends."""
        metric = self._context.metric
        if not metric.unit or metric.horizon is None:
            return metric
        values = self.field_values()
        sides = [list(map(float, values.get(name, [self._usual[name]]))) for name in _OF_LENGTH]
        longest = math.prod(map(max, sides))
        if self._plan.shape == "together" and len(sides[0]) == len(sides[1]):
            longest = max(steps * batch for steps, batch in zip(*sides, strict=True))
        horizon = metric.horizon * longest / math.prod(float(self._usual[name]) for name in _OF_LENGTH)
        return metric.model_copy(update={"horizon": horizon, "worst": horizon})

    def field_values(self) -> dict[str, list[Any]]:
        """Return what fields of the job are held at, or compared over; those that are searched are neither."""
        values = {name: [value] for name, value in self._plan.constants.items()}
        if not self._plan.confirm:
            values |= {entry.field: [entry.control, *entry.treatments] for entry in self._plan.contrasts}
        return {name: entries for name, entries in values.items() if name != MODEL}

    def propose(self) -> actions.Propose:
        contrasts, shape = self._plan.contrasts, self._plan.shape
        if self._plan.confirm:
            return actions.Propose(search=True)
        first = contrasts[0]
        if shape == "interaction":
            other = contrasts[1]
            claim = self._make_claim([first, other], 0, (-_NO_IDEA, _NO_IDEA, follow_up.UNDIRECTED))
            return actions.Propose(hypotheses=(claim.model_copy(update={"moderator": other.field}),))
        if shape == "trend":
            claim, ladder = self._make_claim([first], len(first.treatments) - 1), (first.control, *first.treatments)
            return actions.Propose(hypotheses=(claim.model_copy(update={"ladder": ladder}),))
        groups = [list(contrasts)] if shape == "together" else [[entry] for entry in contrasts]
        claims = [self._make_claim(group, at) for group in groups for at in range(len(group[0].treatments))]
        return actions.Propose(hypotheses=tuple(claims))

    def design(self) -> actions.ProposeDesign:
        constants = dict(self._plan.constants)
        steps, again, screen = constants.pop("steps", None), self.parsed.again, None
        if self._plan.confirm:
            knobs = self._plan.contrasts
            low, high, probability = follow_up.predict_best([knob.field for knob in knobs])
            low, high = follow_up.scale_to_metric(low, high, self._metric)
            usual = self._usual
            screen = actions.ProposedScreen(
                knobs=tuple(actions.ProposedKnob(
                    field=name, values=values, control=None if control == usual[name] else control,
                ) for name, control, values in knobs),
                confirm=self._plan.confirm, predicted_low=low, predicted_high=high,
                probability=probability, smallest_effect=self._find_effect(),
            )  # fmt: skip
        return actions.ProposeDesign(
            environment=self._environment, steps=None if steps is None else int(steps), screen=screen,
            constants=tuple(actions.Constant(field=name, value=value) for name, value in constants.items()),
            evaluate_apart=self._context.wanted.evaluate_apart,
            replication=actions.ProposedReplication(environment=again) if again else None,
        )  # fmt: skip

    def describe_assumptions(self) -> str:
        context, plan, notes = self._context, self._plan, list[str]()
        if not context.wanted.vary and context.campaign is None:
            longer = f" --extend-to {context.extend_to}" if context.extend_to else ""
            notes.append(f"Understood as: {self.parsed.command(context.wanted)}{longer}.")
        if self.parsed.environment is None:
            title = next((facts.title for facts in context.environments if facts.name == self._environment), "")
            notes.append(f"No environment is named; {self._environment} ({title}) is played.")
        notes += _describe_values(plan)
        if self.parsed.again:
            notes.append(f"What is supported is tried once more in {self.parsed.again}.")
        for name, value in plan.constants.items():
            why, follows = plan.adjusted.get(name), plan.matched == "episodes" and name == "steps"
            alone = "the control; in the others it follows the batch" if follows else "all arms"
            notes.append(f"{name} is {value_text(value)} in {alone}{f', {why}' if why else ''}.")
        of_models = not plan.confirm and any(entry.field == MODEL for entry in plan.contrasts)
        outcome = outcome_name(MODEL if of_models else "", self._named)
        if self._named is None or context.effect_given:
            notes.append(f"The smallest effect of interest is {self._describe_effect()} of the {outcome}.")
        if self._named is not None:
            better = "higher" if self._named.higher_is_better else "lower"
            judged = f"{outcome[:1].upper()}{outcome[1:]} is compared, {better} being better"
        elif of_models:
            judged = (
                "What each run gains is compared, its success on hidden tasks after the last step less that before "
                "the first, as the models begin differently"
            )
        else:
            judged = "Success on hidden tasks after the last step is compared"
        return " ".join([*notes, f"{judged}; predictions are hand-written priors."])

    def _describe_effect(self) -> str:
        given = self._context.effect_given
        return format_difference(self._metric, self._context.effect if given else default_effect(self._metric))

    def _find_effect(self) -> float | None:
        """Return the study's smallest effect; None for a default that follows from how long the design trains."""
        return self._context.effect if self._context.effect_given or not self._context.metric.unit else None

    def _make_claim(
        self, about: Sequence[Contrast], at: int, expected: tuple[float, float, float] | None = None
    ) -> actions.ProposedHypothesis:
        claim = None if expected else self._plan.claim
        if expected is None:
            # Words have no order, and their priors no direction.
            sizes = [(each.control, each.treatments[at]) for each in about]
            rises = [any(isinstance(side, str) for side in pair) or pair[1] > pair[0] for pair in sizes]  # type: ignore[operator]
            known = [follow_up.predict(one.field, rises=up, claim=claim) for one, up in zip(about, rises, strict=True)]
            lows, highs, chances = zip(*known, strict=True)
            expected = min(lows), max(highs), sum(chances) / len(chances)
        variable, control, treatment = about[0].field, about[0].control, about[0].treatments[at]
        sides: list[Any] = [control, treatment]
        if len(about) > 1:
            variable = CONFIGURATION
            sides = [{e.field: e.control for e in about}, {e.field: e.treatments[at] for e in about}]
        low, high = follow_up.scale_to_metric(*expected[:2], self._metric)
        raises = (claim != "decrease") == self._metric.higher_is_better
        acting = self._context.wanted.mediators if self._context.campaign is None else ()
        return actions.ProposedHypothesis(
            mechanism=" ".join(dict.fromkeys(follow_up.find_prior(each.field).because for each in about)),
            variable=variable, control=sides[0], treatment=sides[1], direction="increase" if raises else "decrease",
            predicted_low=low, predicted_high=high, probability=expected[2], smallest_effect=self._find_effect(),
            falsifier=f"An interval on fresh seeds beyond 0 on the other side, or within ±{self._describe_effect()}.",
            confounds=tuple(fear for each in about for fear in follow_up.UNSEEN_CONFOUNDERS.get(each.field, ())),
            matched=self._plan.matched, code=self._context.wanted.code.get(str(treatment), (None, None))[1],
            sought="equivalence" if self.parsed.equivalence else "either" if claim is None else "difference",
            mediators=tuple(actions.ProposedMediator(metric=metric, direction=way) for metric, way in acting),
        )  # fmt: skip


def _list_values(name: str, values: Sequence[Scalar], joint: str) -> str:
    return f"{name} {joint.join(map(value_text, values))}"


def _describe_values(plan: ValuePlan) -> list[str]:
    first = plan.contrasts[0]
    if plan.confirm:
        fields = "; ".join(
            f"{_list_values(f'{knob.field} among', knob.treatments, ', ')} (control {value_text(knob.control)})"
            for knob in plan.contrasts
        )
        best = "candidate is" if plan.confirm == 1 else f"{plan.confirm} candidates are"
        return [
            f"The best values are searched by a screen that makes no claim: {fields}. The "
            f"best {best} then compared with it on fresh seeds and hidden tasks."
        ]
    if plan.shape == "trend":
        rungs = _list_values("at", (first.control, *first.treatments), ", ")
        return [f"{first.field} is trained {rungs}, and the one claim is on their straight line."]
    if plan.shape == "interaction":
        one, other = (_list_values(each.field, (each.control, each.treatments[0]), " and ") for each in plan.contrasts)
        return [f"{one} are crossed with {other}: four arms, and twice the variance of a plain comparison."]
    if plan.shape == "together":
        settings = zip(*([f"{name} {value_text(v)}" for v in (control, *others)] for name, control, others in
                         plan.contrasts), strict=True)  # fmt: skip
        control, *others = map(", ".join, settings)
        return [f"{control} is compared with {' and with '.join(others)}: the fields differ together."]
    open_question = " (no direction of the effect is named: an open question)" if plan.claim is None else ""
    return [
        f"{each.field} {value_text(each.control)} is compared with {' and '.join(map(value_text, each.treatments))}"
        f"{open_question}."
        for each in plan.contrasts
    ]
