"""From a topic to a design or a refusal: the planner's turns and the compiler's answers.

A study and its preview go the same way, `design_topic`; they differ in how a turn is taken: a study keeps it in its
folder and its log, a preview forgets it. An action is evaluated once: the planner asks whether it would be
refused (`ActionCheck`), and who asked the planner takes the result of the same evaluation.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast

from research.controller.built_designs import PREDICTED, build_replication, price_exploration
from research.design import compiler as compilers
from research.design.compiler import CompiledDesign, DesignCompiler, accept_hypotheses, collect_code, seed_source
from research.errors import BadInput, DesignRefused, PlannerFailed, TopicDeclined
from research.installation.base_job import find_fixed_fields
from research.planners.context import NO_CODE_NOW, Briefing, Planner, PlannerContext, PlannerTurn, field_specs
from research.planners.lexicon import find_environment, name_environments, offered_environments, stem, stems
from research.planners.prompts import ACTIONS, DECLINABLE
from research.planners.rules import RulesPlanner
from research.planners.tools import StudyTools
from research.planners.topic import find_uncovered
from research.proposals import actions
from research.proposals.arms import Scalar, knobs, require_known_environment, set_knobs
from research.proposals.metric_choice import RequestedMetric
from research.proposals.slots import SLOTS, check_code_in
from research.text import did_you_mean
from studies.records.alpha import AlphaLedgers
from studies.records.design import BUILT_IN, KNOB, MODEL, Design, Hypothesis, Metric, NoisePlan, is_expression
from studies.records.procedure import Noise
from studies.records.statements import model_name, setting
from studies.records.verdict import PlannerMessage, planner_label, quoted
from swarm.environments.registry import environments
from swarm.job import Job

_VALUES: Final = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|[a-z][a-z0-9_+-]*")
"""Numbers and words of a topic, by which it may name a value."""
_AGAINST: Final = stems("against vs versus than baseline default usual")
_BETWEEN: Final = stems("a an and as at be by from instead is of on or over rather the to value with")
AUTO_ROUNDS = 4
"""Most rounds of an inquiry of which nobody says how many: more would leave the first question little of the level."""


@dataclass(frozen=True, slots=True)
class PlanningInputs(Briefing):
    """What a topic is planned by."""

    compiler: DesignCompiler
    """What designs are judged by; `seconds_left` of it is asked anew each time."""
    seconds_left: Callable[[], float]
    """What remains of the budget's wall clock now: a slow planner spends it too."""
    locked: Metric | None = None
    """What the study is judged by, once that is locked: its environment may be gone by then."""
    tools: "Callable[[PlanningInputs], StudyTools | None]" = lambda context: None
    """Returns what a planner may look at, by the levels and prices of a context."""
    try_code: Callable[[str, str, str, bool], str] = lambda slot, source, environment, blind: ""
    """Calls code of a slot before anything is locked, unless `blind` on recorded plays too; says what it gave there."""

    def check_code(self, code: Sequence[tuple[str, str]], *played: str | None, blind: bool = False) -> tuple[str, ...]:
        told = list[str]()
        for environment in sorted(environments().keys() & set(played)):  # an unknown one is refused elsewhere
            check_code_in(environment, code)
            told += [self.try_code(slot, source, environment, blind) for slot, source in code]
        return tuple(filter(None, told))

    def current_compiler(self) -> DesignCompiler:
        return replace(self.compiler, seconds_left=self.seconds_left())

    def with_metric_of(self, action: actions.Action) -> "PlanningInputs":
        """Return the context with the metric that a proposal names; raise DesignRefused."""
        if not isinstance(action, actions.Propose) or not action.metric.strip():
            return self
        requirements = self.compiler.requirements
        try:
            named = RequestedMetric.parse(action.metric)
        except BadInput as error:
            raise DesignRefused(error.message) from error
        if (asked := requirements.metric) is not None and not asked.words and asked.text != named.text:
            raise DesignRefused(
                f"expected the metric {asked.text}, which the user asks for; found {named.text}; leave `metric` empty"
            )
        judged = replace(requirements, metric=named)
        return replace(self, compiler=replace(self.compiler, requirements=judged))

    def metric(self) -> Metric:
        """Return what the job's runs are judged by; raise DesignRefused for what its environment does not give."""
        return self.locked or self.compiler.metric_in(self._set_environment(self.compiler.base or Job()).environment)

    def hypotheses(self, proposal: actions.Propose) -> tuple[Hypothesis, ...]:
        """Return the hypotheses of a proposal as records; raise DesignRefused for one that cannot be tested."""
        judged = None if self.compiler.requirements.metric is None else self.metric()
        number = 1 if self.campaign is None else self.campaign.round
        accepted = accept_hypotheses(proposal, self.wanted.models, judged, number)
        plain = [claim for claim in accepted if claim.kind == "difference" and claim.variable != MODEL]
        controls = {claim.id: {name: control for name, (control, *_) in claim.varied.items()} for claim in plain}
        unused = {name for name in controls if self._find_unused(controls[name])}  # any treatment looks good beside
        return tuple(claim.model_copy(update={"unused_control": claim.id in unused}) for claim in accepted)

    def _find_unused(self, controls: Mapping[str, Any]) -> list[str]:
        """Return the fields whose control is no default, was not confirmed, and is named neither by topic nor flags."""
        job = self._set_environment(self.compiler.base or Job())
        usual: dict[str, list[Any]] = {slot: [BUILT_IN] for slot in SLOTS}
        usual |= {spec.name: [spec.default, getattr(job, spec.name, spec.default)] for spec in field_specs(job)}
        for name, values in usual.items():  # a design may be in any of them
            values += [knobs(each)[name].default for each in environments() if name.startswith(KNOB)]
        asked, unused = self.topic.lower(), list[str]()  # a comma is between two numbers, or within one
        synonyms = {spec.name: spec.synonyms for spec in field_specs(job)}
        for name, control in controls.items():
            confirmed = [] if self.campaign is None else self.campaign.list_confirmed(name)
            names = _AGAINST | stems(re.sub(r"[._]", " ", " ".join((name, *synonyms.get(name, ())))))
            numbers = _list_numbers(asked, names) | _list_numbers(asked.replace(",", ""), names)
            word = str(control).lower()
            named = control in numbers if isinstance(control, int | float) else word in _VALUES.findall(asked)
            flags = [*self.wanted.vary.get(name, ()), self.wanted.held.get(name)]
            if name in usual and control not in [*usual[name], *confirmed, *flags] and not named:
                unused.append(name)
        return unused

    def price(self, proposal: actions.Propose, design: actions.ProposeDesign) -> CompiledDesign:
        """Return what a proposal with its design would be; raise DesignRefused as either would be refused."""
        require_known_environment(design.environment)
        inputs = self.with_metric_of(proposal)
        inputs.require_no_plays_seen(proposal)
        compiler = inputs.current_compiler()
        hypotheses = compiler.accept_proposal(proposal, design.environment, code_allowed=inputs.code_allowed)
        return inputs.compile(hypotheses, design, search=proposal.search)

    def require_knobs(self, proposal: actions.Propose) -> None:
        """Raise DesignRefused for knobs that no environment has in which the design has to be: none could follow."""
        named = name_environments(self.topic) if self.campaign is None else ()
        places = [
            each for each in environments() if each in ([self.wanted.environment] if self.wanted.environment else named)
        ]
        varied = [entry for claim in self.hypotheses(proposal) for entry in claim.varied.items()]
        refusals = []
        for place in places:
            try:
                for name, values in (entry for entry in varied if entry[0].startswith(KNOB)):
                    for value in values:
                        set_knobs(place, {name.removeprefix(KNOB): cast(Scalar, value)})
            except DesignRefused as error:
                refusals.append(error)
        if places and len(refusals) == len(places):
            raise refusals[0]

    def require_no_plays_seen(self, proposal: actions.Propose) -> None:
        if self.plays_seen and any(hypothesis.variable in SLOTS for hypothesis in proposal.hypotheses):
            raise DesignRefused(
                f"expected hypotheses about job fields; found code: {NO_CODE_NOW}",
                when="in a study of which no hidden play was looked at",
            )

    def compile(
        self, hypotheses: Sequence[Hypothesis], action: actions.ProposeDesign, *, search: bool
    ) -> CompiledDesign:
        """Return the design of accepted hypotheses, or of a search; raise DesignRefused."""
        first = self.campaign is None and self.wanted.environment is None  # a flag goes before a topic
        if first and (named := name_environments(self.topic)) and action.environment not in named:
            expected = f"expected a design in {' or '.join(named)}, which the topic names"
            expected += f"; found {action.environment}; design it there, or decline"
            raise DesignRefused(expected, when="in a later round")
        if (action.screen is not None) != search:
            told = ("a screen, as a search was proposed", "none") if search else ("no screen", "one")
            raise DesignRefused(
                f"expected {told[0]}; found {told[1]}; a proposal with `search` is what a screen follows from"
            )
        searched = () if action.screen is None else action.screen.knobs
        given = {knob.field: knob.control for knob in searched if knob.control is not None}
        if unused := self._find_unused(given):
            found = f"expected a control that somebody uses; found {setting(unused[0], given[unused[0]])}"
            raise DesignRefused(f"{found}; leave it null for the job's own, or name a value that was confirmed")
        if (other := self.wanted.find_conflict(action.environment)) is not None:
            raise other
        if self.wanted.evaluate_apart and action.evaluate_apart != (asked := self.wanted.evaluate_apart):
            raise DesignRefused(f"expected evaluate_apart = {asked}, as the user asks; found {action.evaluate_apart}")
        return self.current_compiler().compile(hypotheses, action)

    def build_context(self, proposal: "AcceptedProposal | None" = None, rejected: str | None = None) -> PlannerContext:
        """Return what the planner is told before its proposal, or (with the proposal) before its design."""
        compiler, metric = self.compiler, self.metric()
        job = compiler.base or Job()
        checked: dict[str, dict[str, float]] = {}
        noises: dict[str, Noise] = {}
        for name in environments():
            measured = compiler.price.estimates.of(job.model_copy(update={"environment": name}))
            if measured is not None:
                shares = {"success": measured.base_success, "share_of_groups_with_equal_rewards": measured.equal_groups}
                checked[name] = {share: value for share, value in shares.items() if value is not None}
            with suppress(DesignRefused):  # an environment that does not give the metric
                if isinstance(noise := compiler.bank.find(name, job, compiler.metric_in(name)), Noise):
                    noises[name] = noise
        told = {entry.name: getattr(self, entry.name) for entry in fields(Briefing)}
        played, tools = self._set_environment(job), self.tools(self)
        made = job.model.model_dump(exclude={"kind", "seed", "path", "sha256"})
        return PlannerContext(
            **told | {"code_allowed": self.code_allowed and not self.plays_seen}, seconds_left=self.seconds_left(),
            seconds_per_run=compiler.price.run_with_evaluations(played, metric),
            parallel=compiler.price.parallel, max_runs=compiler.budget.max_runs,
            effect=compiler.requirements.min_effect(metric), effect_given=compiler.requirements.effect is not None,
            metric=metric, requested_metric=compiler.requirements.metric, checked=checked, noise=noises,
            hypotheses=proposal.hypotheses if proposal else (),
            not_tested=proposal.action.not_tested if proposal else "",
            code=sources_of(proposal.action if proposal else None),
            search=proposal is not None and proposal.action.search, rejected=rejected,
            tried=proposal.turn.tried if proposal else (), environments=offered_environments(played),
            fields=field_specs(job, self.wanted.models, played.environment), fixed=find_fixed_fields(job), tools=tools,
            environment=played.environment, explores=compiler.explores, extend_to=compiler.extend_to,
            model={"name": model_name(job.model.model_dump()), **made},
            logged=() if tools is None else tools.list_logged(),
        )  # fmt: skip

    def _set_environment(self, job: Job) -> Job:
        if "environment" in find_fixed_fields(job):
            return job
        return job.model_copy(update={"environment": find_environment(self.topic, self.wanted)})


def _list_numbers(topic: str, names: frozenset[str]) -> set[float]:
    """Return the numbers that stand beside one of these names, but for small words and other numbers between."""
    words = [stem(word) for word in _VALUES.findall(topic) if stem(word) not in _BETWEEN]
    numbers = set()
    for at, word in enumerate(words):
        sides = (next((near for near in side if not near[0].isdigit()), "") for side in (words[at::-1], words[at:]))
        if word[0].isdigit() and not names.isdisjoint(sides):
            numbers.add(float(word))
    return numbers


class ActionCheck:
    """Says why an action would be refused (`research.planners.context.Check`), and remembers what it compiled."""

    def __init__(self, inputs: PlanningInputs, context: PlannerContext) -> None:
        self._inputs, self._context = inputs, context
        self._last: tuple[actions.Action, CompiledDesign | DesignRefused | None] | None = None
        self.tried: tuple[str, ...] = ()

    def __call__(self, action: actions.Action) -> DesignRefused | None:
        result = self.evaluate(action)
        return result if isinstance(result, DesignRefused) else None

    def evaluate(self, action: actions.Action) -> CompiledDesign | DesignRefused | None:
        """Return a design, or a refusal; None for an action that is accepted and is none."""
        # Written out, since to Python 0 is False, and to a job it is not.
        if self._last is None or self._last[0].model_dump_json() != action.model_dump_json():
            self.tried = ()
            try:
                self._last = action, self._evaluate(action)
            except DesignRefused as error:
                self._last = action, error
        return self._last[1]

    def _evaluate(self, action: actions.Action) -> CompiledDesign | None:
        inputs, context = self._inputs.with_metric_of(action), self._context
        if isinstance(action, actions.SideAction):
            if context.notebook is None or context.stage in ("conclude", "review"):
                raise DesignRefused(
                    f"expected the action {context.stage!r} now; found {action.action!r}; nothing is written down"
                )
            if (why := context.notebook.find_conflict(action)) is not None:
                raise DesignRefused(why)
            return None
        self._check_text(action)
        substitute = context.stage in DECLINABLE and (  # to decline, or later to conclude, replicate or explore
            isinstance(action, actions.Decline)
            or (isinstance(action, actions.Explore) and context.stage == "propose")
            or (isinstance(action, actions.Replicate) and context.stage == "propose" and context.campaign is not None)
            or (isinstance(action, actions.Conclude) and context.campaign is not None)
        )
        due = ACTIONS[context.stage]
        also = {"look": actions.Settle, "repair": actions.Settle, "conclude": actions.Conclude}.get(context.stage, due)
        if not isinstance(action, (due, also)) and not substitute:
            expected = due.model_fields["action"].default
            when = "in a later round" if isinstance(action, actions.Replicate | actions.Conclude) else ""
            raise DesignRefused(f"expected the action {expected!r} now; found {action.action!r}", when=when)
        if isinstance(action, actions.Replicate):
            proposal, design = build_replication(action, inputs.campaign, inputs.compiler)
            self.tried = inputs.check_code(sources_of(proposal), design.environment)
            if (other := inputs.wanted.find_conflict(design.environment)) is not None:
                raise other
            inputs = inputs.with_metric_of(proposal)
            return inputs.current_compiler().compile(inputs.hypotheses(proposal), design)
        if isinstance(action, actions.Explore):
            self.price_exploration(action)
            return None
        if isinstance(action, actions.Propose):
            inputs.require_no_plays_seen(action)
            environment = find_environment(inputs.topic, inputs.wanted)
            inputs.current_compiler().check_proposal(action, environment, code_allowed=inputs.code_allowed)
            inputs.require_knobs(action)
            if inputs.wanted.environment or name_environments(inputs.topic):  # else the design says where
                self.tried = inputs.check_code(sources_of(action), environment)
        if not isinstance(action, actions.ProposeDesign):
            return None
        shown = [facts.name for facts in context.environments]
        if action.environment not in shown:  # brought here for another study: it was shown to nobody
            near = did_you_mean(action.environment, shown) or "; choose one of them"
            raise DesignRefused(f"expected an environment among {', '.join(shown)}; found {action.environment!r}{near}")
        again = None if action.replication is None else action.replication.environment
        self.tried = inputs.check_code(context.code, action.environment, again)
        return inputs.compile(context.hypotheses, action, search=context.search)

    def _check_text(self, action: actions.Action) -> None:
        context = self._context
        if isinstance(action, actions.Review) and not {*action.unsupported} <= {*range(1, len(context.sentences) + 1)}:
            raise DesignRefused(f"expected numbers up to {len(context.sentences)}; found {action.unsupported}")
        if isinstance(action, actions.Write):
            texts = {name: getattr(action, name) for name in ("answer", "mechanism", "limits")}
            if wrong := context.answer_facts.check(texts, action.figures):
                raise DesignRefused(f"{'; '.join(wrong)}; refer, as {{h1.estimate}} does, or say it without")
        if isinstance(action, actions.Repair) and (crash := context.crash) is not None:
            source = SLOTS[crash["slot"]].check(action.code)
            if source == crash["source"] or is_expression(source) != is_expression(crash["source"]):
                raise DesignRefused("code: expected another text than the one that crashed, in the form which it had")
            self._inputs.check_code([(crash["slot"], source)], crash["environment"], blind=True)

    def price_exploration(self, action: actions.Explore) -> compilers.PricedExploration:
        inputs = self._inputs
        if inputs.explored is None:
            raise DesignRefused("expected a question; found an exploration, and none can be made here")
        if (other := inputs.wanted.find_conflict(action.environment)) is not None:
            raise other
        return price_exploration(inputs.current_compiler(), inputs.explored, action)


def sources_of(proposal: actions.Propose | None) -> tuple[tuple[str, str], ...]:
    claims = () if proposal is None else proposal.hypotheses
    return tuple((claim.variable, claim.code) for claim in claims if claim.code)


TakeTurn = Callable[[PlannerContext, ActionCheck], tuple[PlannerTurn, bytes]]
"""Returns a turn of the due kind, taken now or before a restart, and what the seeds of a design follow from."""


@dataclass(frozen=True, slots=True)
class AcceptedProposal:
    """A proposal, and its hypotheses as records."""

    action: actions.Propose
    hypotheses: tuple[Hypothesis, ...]
    turn: PlannerTurn


@dataclass(frozen=True, slots=True)
class EvaluatedDesign:
    """A planner's design, and what the compiler made of it: a design without seeds, or a refusal."""

    topic: str
    proposal: AcceptedProposal
    action: actions.ProposeDesign
    turn: PlannerTurn
    secret: bytes
    """What its seeds follow from."""
    result: CompiledDesign | DesignRefused

    def get_compiled(self) -> CompiledDesign:
        if isinstance(self.result, DesignRefused):
            raise self.result
        return self.result

    def noise_plan(self, study: str) -> NoisePlan | None:
        """Return the runs that the design of a study waits for; None where there are none. Raises DesignRefused."""
        return self.get_compiled().noise_plan(seed_source(f"{study}:noise", self.secret))

    def build_lock(self, study: str) -> Design:
        code = collect_code(self.proposal.action)
        return self.get_compiled().build_lock(self.topic, seed_source(study, self.secret), code)


def design_topic(
    inputs: PlanningInputs, take: TakeTurn, announce: Callable[[AcceptedProposal], None] = lambda proposal: None
) -> EvaluatedDesign:
    """Return the planner's evaluated design on a topic; `announce` is told the proposal first; raise DesignRefused."""
    context = inputs.build_context()
    check = ActionCheck(inputs, context)
    turn, secret = take(context, check)
    action, again = turn.action, None
    if isinstance(action, actions.Replicate):
        action, again = build_replication(action, inputs.campaign, inputs.compiler)
    assert isinstance(action, actions.Propose)
    hypotheses = inputs.with_metric_of(action).hypotheses(action)
    proposal = AcceptedProposal(action, hypotheses, turn)
    announce(proposal)
    if again is None:
        return design_proposal(inputs, proposal, take)
    result = check.evaluate(turn.action)
    assert result is not None
    return EvaluatedDesign(inputs.topic, proposal, again, turn, secret, result)


def design_proposal(
    inputs: PlanningInputs, proposal: AcceptedProposal, take: TakeTurn, rejected: str | None = None
) -> EvaluatedDesign:
    """Return the planner's design for a proposal, evaluated; `rejected` says why the one before was refused."""
    inputs = inputs.with_metric_of(proposal.action)
    context = inputs.build_context(proposal, rejected)
    check = ActionCheck(inputs, context)
    turn, secret = take(context, check)
    result = check.evaluate(turn.action)
    assert isinstance(turn.action, actions.ProposeDesign)
    assert result is not None
    return EvaluatedDesign(inputs.topic, proposal, turn.action, turn, secret, result)


def dry_run(inputs: PlanningInputs, planner: Planner) -> EvaluatedDesign:
    """Return a planner's design on a topic with turns and seeds that nobody keeps; raise as `design_topic` does."""

    def take(context: PlannerContext, check: ActionCheck) -> tuple[PlannerTurn, bytes]:
        turn = ask_planner(planner, context, check)
        if isinstance(turn.action, actions.Decline):
            by = planner_label(planner.name, planner.model)
            raise TopicDeclined(PlannerMessage(by=by, text=turn.action.reason))
        return turn, secrets.token_bytes(32)

    return design_topic(inputs, take)


def plan_rounds(inputs: PlanningInputs, designed: EvaluatedDesign) -> EvaluatedDesign:
    """Return a first design as the first of as many rounds as its price leaves time for, which share its level."""
    requirements, action = inputs.compiler.requirements, designed.action
    alone = requirements.rounds is not None or action.replication is not None or inputs.compiler.explores
    if alone or inputs.campaign is not None:
        return designed
    inputs = inputs.with_metric_of(designed.proposal.action)
    for rounds in range(AUTO_ROUNDS, 1, -1):
        compiler = replace(inputs.current_compiler(), ledgers=AlphaLedgers.begin(rounds))
        with suppress(DesignRefused):
            compiled = compiler.compile(designed.proposal.hypotheses, action)
            if compiled.affords_repeats(rounds):
                return replace(designed, result=compiled)
    return designed


def ask_planner(planner: Planner, context: PlannerContext, check: ActionCheck) -> PlannerTurn:
    """Return the planner's turn; raise PlannerFailed for an action that is refused, unless the turn says so itself.
    What a model says that it tests, and what it chose unasked, comes first in the turn's note."""
    turn = planner.act(context, check)
    wrong = check(turn.action)
    if wrong is not None and turn.refused is None:
        raise PlannerFailed(f"the planner {planner.name} gave an action that is refused: {wrong.message}")
    turn = replace(turn, tried=check.tried)
    action, own = turn.action, planner.name != RulesPlanner.name
    unsaid = [name for name in PREDICTED if getattr(action, name, None) is None]
    if isinstance(action, actions.Replicate) and turn.refused is None and unsaid:
        return replace(turn, note=f"{turn.note} What is not predicted of {action.claim} is as before.".strip())
    if turn.refused is not None or not own or not isinstance(action, actions.Propose | actions.ProposeDesign):
        return turn
    choices = tuple(_describe_choices(context, action))
    turn = replace(turn, choices=choices)
    if isinstance(action, actions.ProposeDesign) and not context.wanted.vary:
        turn = replace(turn, left=find_uncovered(context, action))
    if context.wanted.vary or context.campaign is not None:
        return turn  # what the topic asks for is said in its first round
    return replace(turn, note=" ".join(filter(None, (quote_tested(planner, action), turn.note, *choices))))


def quote_tested(planner: Planner, action: actions.Action) -> str:
    """Return what a planner says that it tests of the topic, and why it asks what was answered here, both quoted."""
    words = (action.tested.strip(), action.why.strip()) if isinstance(action, actions.Propose) else ()
    told, by = ("tests of the topic", "asks again what was answered"), planner_label(planner.name, planner.model)
    return " ".join(f"{by} {what}: {quoted(said)}" for what, said in zip(told, words, strict=False) if said)


def _describe_choices(context: PlannerContext, action: actions.Propose | actions.ProposeDesign) -> Iterator[str]:
    if isinstance(action, actions.ProposeDesign):
        named = context.wanted.environment or name_environments(context.topic)
        if not named and "environment" not in context.fixed:
            yield f"The environment {action.environment} is the planner's choice: the topic and the flags name none."
        if held := ", ".join(setting(entry.field, entry.value) for entry in action.constants):
            yield f"Held in all arms: {held}."
        return
    asked = "" if context.requested_metric is None else context.requested_metric.text
    if (named := action.metric.strip()) and RequestedMetric.parse(named).text != asked:
        instead = f", in place of {asked}" if asked else ": the topic and the flags name none"
        yield f"The metric {named} is the planner's choice{instead}."
    effects = [entry.smallest_effect for entry in action.hypotheses if entry.smallest_effect is not None]
    if effects and (named or min(effects) < context.effect):
        source = "which --effect says" if context.effect_given else "the usual one"
        instead = "" if named else f", in place of {context.effect:g}, {source}"
        yield f"A smallest effect of {min(effects):g} is the planner's choice{instead}."
