"""What a planner may do: propose hypotheses, design their comparison, replicate a claim, go on or settle after a look,
conclude, decline, at the end write an answer, which a second call reviews; and, beside one of these, note, revise an
idea, ask the user, plan. Nothing else exists for it.

The source of code that a proposal carries is text wherever it is handled outside a container.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator, model_validator

from research.proposals.slots import MOST_BYTES
from studies.records.base import JsonValue
from studies.records.design import CONFIGURATION, LEAST_RUNGS, MOST_MEDIATORS, MOST_REPAIRS
from studies.records.procedure import PlanNode, Rule
from studies.records.verdict import AnswerFigure

MOST_HYPOTHESES = 3
MOST_CONFIRMED = 3
MOST_KNOBS = 4
MOST_TRIED = 6
MOST_SEEDS = 5
LEAST_SEEDS = 3
MOST_LEFT_OUT = 500
MOST_NOTED = 500
DEFAULT_EFFECT = 0.10
"""Smallest effect of interest where nobody names one: ten points of the hidden success."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Word = Annotated[str, Field(strict=True, max_length=64)]
Phrase = Annotated[str, Field(strict=True, min_length=1, max_length=200)]
Scalar = StrictBool | StrictInt | Number | Word
"""A value of a job field that can be varied; a text is one of a choice of words."""
MOST_RUNGS = 8
"""Most values of a trend, or settings of a contrast."""
MOST_TOGETHER = 4
"""Most fields in which the arms of one hypothesis differ together."""
Condition = Literal[
    "verdict in ('supported', 'refuted', 'equivalent')",
    "verdict in ('inconclusive', 'invalid') and looks_left > 0",
    "verdict in ('inconclusive', 'invalid') and looks_left == 0",
    "verdict == 'supported'",
    "verdict in ('refuted', 'equivalent')",
    "verdict == 'inconclusive' and p > 0.5",
]
"""What a rule of a decision table may ask of the verdict at a look, as designs hold it; the last one is futility."""
CONDITIONS: Final[tuple[str, ...]] = get_args(Condition)
DEFAULT_TABLE: Final = (
    Rule(name="decided", when=CONDITIONS[0], then="settle"),
    Rule(name="look-again", when=CONDITIONS[1], then="continue"),
    Rule(name="out-of-looks", when=CONDITIONS[2], then="settle"),
)
"""Stop as soon as a look decides; else go on to the last one."""
KILL: Final = "kill-condition"
UNRULED: Final = Rule(name="no-rule", when="no rule of the table holds", then="settle")
"""What is done where no rule holds; its `when` is for people."""
KEPT_NAMES: Final = (KILL, UNRULED.name)
"""Names that no rule of a table may have, so that a decision says whose it is."""


class _ActionModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class FieldValue(_ActionModel):
    """One of several job fields that an arm changes together, with its value."""

    field: str
    """Name of the job field."""
    value: Scalar
    """Its value in this arm."""


EvaluateApart = StrictBool | Literal["both", "agent"]
Setting = Scalar | Annotated[tuple[FieldValue, ...], Field(min_length=2, max_length=MOST_TOGETHER)]
"""What an arm sets: the value of the variable, or of each of several fields."""


class ProposedMediator(_ActionModel):
    """What the treatment acts by, as you think: measured of the same runs, and tested by code once the claim is."""

    metric: Phrase
    """What is measured: 'logged:NAME:REDUCTION[:WORST..BEST]' or 'fact:NAME[:REDUCTION]', as `metrics` among the facts
    has them."""
    direction: Literal["increase", "decrease"]
    """Which way the treatment moves it, if the mechanism holds."""
    smallest_effect: Number | None = Field(default=None, gt=0)
    """The smallest move that would matter, in its unit; null for a tenth of its range."""


class ProposedHypothesis(_ActionModel):
    """One claim: the treatment value of one job field moves the metric away from the control value's."""

    statement: str = Field(default="", max_length=500)
    """The claim in your words, kept as a quotation. What is tested is written by code from the fields below."""
    mechanism: str = Field(max_length=1000)
    """Why you expect it, in one or two sentences."""
    variable: str
    """The one job field or slot in which control and treatment differ; `model` where that is offered;
    `configuration` where several fields are set together."""
    control: Setting
    """Value of the field in the control arm, the same in every hypothesis about this field; of a `configuration` the
    list of its fields with their values."""
    treatment: Setting
    """Value of the field in the treatment arm; of a `configuration` the same fields, each with another value."""
    code: str | None = Field(default=None, max_length=MOST_BYTES)
    """Source of the treatment if `variable` is a slot, Python or an expression behind `=`; otherwise null."""
    direction: Literal["increase", "decrease"]
    """Whether the treatment raises or lowers the metric: the success rate, or the `metric` among the facts."""
    predicted_low: Number
    """Lower end of your 80 % interval for metric(treatment) - metric(control): of success rates between -1 and 1."""
    predicted_high: Number
    """Upper end of that interval."""
    probability: Number = Field(ge=0, le=1)
    """Probability you give to the data supporting the stated direction at the 5 % level."""
    smallest_effect: Number | None = Field(default=None, gt=0)
    """The smallest difference of the metric that would matter: at most the study's, or null for that."""
    falsifier: str = Field(default="", max_length=500)
    """The cheapest observation that would show the claim to be false."""
    kill_if: Literal["", Condition] = ""
    """When to give the hypothesis up early, by its verdict at a look; empty for never."""
    confounds: tuple[Phrase, ...] = Field(default=(), max_length=8)
    """What else could bring the effect about, each in a clause."""
    matched: Literal["steps", "episodes"] = "steps"
    """What of training both arms have equal. `episodes` is for `episodes_per_step` alone: the arm of the larger batch
    takes fewer steps."""
    sought: Literal["difference", "equivalence", "either"] = "difference"
    """`equivalence` to claim that there is no difference that matters; `either` to ask which value is better, without a
    direction."""
    moderator: str = ""
    """Whether the effect of one field depends on another: of a `configuration` of two fields, the one on which the
    other's effect depends. Four arms are trained, and `increase` means that the effect is larger with the moderator's
    treatment value than with its control value. Empty for any other claim."""
    ladder: tuple[Setting, ...] = Field(default=(), max_length=MOST_RUNGS)
    """How the metric moves over several values of one field: three to eight from the lowest, which is `control`, to the
    highest, which is `treatment`. The one claim is on the rise of a straight line over them. Empty for any other
    claim."""
    contrast: tuple[Number, ...] = Field(default=(), max_length=MOST_RUNGS)
    """Weights in sum 0, those above 0 in sum 1 or more, of the means of all settings of `ladder`, in any order and of a
    `configuration` too: those of a main effect or an interaction over the 4 or 8 settings of a factorial, or of a shape
    over doses. The claim is on the weighted sum. Up to three hypotheses may weigh the same ladder. Empty for a straight
    line."""
    mediators: tuple[ProposedMediator, ...] = Field(default=(), max_length=MOST_MEDIATORS)
    """What would have to move with the metric if your mechanism holds, the surest first: none is tested behind one that
    did not move. Usually empty."""

    @property
    def sides(self) -> tuple[JsonValue, JsonValue]:
        """Control and treatment as JSON: of a `configuration` the values by their fields."""
        return as_json(self.control), as_json(self.treatment)

    @field_validator("control", "treatment", "ladder", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """Take an object of fields as well as a list, which strict endpoints need."""
        if isinstance(value, Mapping):
            return tuple({"field": name, "value": entry} for name, entry in value.items())
        bare = isinstance(value, list | tuple) and any(isinstance(e, Mapping) and "field" not in e for e in value)
        return tuple(map(cls._as_list, value)) if bare else value

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        _check_interval(self.predicted_low, self.predicted_high)
        names, others, rungs = _field_names(self.control), _field_names(self.treatment), self.ladder
        if self.variable != CONFIGURATION and (names or others):
            raise ValueError(f"{self.variable}: expected one value in each arm; found several fields; name the "
                             f"variable {CONFIGURATION!r}")  # fmt: skip
        if self.variable == CONFIGURATION and (not names or names != others or len(set(names)) < len(names)):
            found = " and ".join(", ".join(side) or "none" for side in (names, others))
            raise ValueError(f"{CONFIGURATION}: expected the same fields in control and treatment; found {found}")
        if self.moderator and (len(names) != 2 or self.moderator not in names):
            raise ValueError(f"moderator: expected one of the two fields of a {CONFIGURATION}; found "
                             f"{self.moderator!r} and {', '.join(names) or 'no fields'}")  # fmt: skip
        if rungs and (len(rungs) < LEAST_RUNGS or (rungs[0], rungs[-1]) != (self.control, self.treatment)):
            raise ValueError(f"ladder: expected {LEAST_RUNGS} to {MOST_RUNGS} values from control to treatment; found "
                             f"{', '.join(map(str, rungs))}")  # fmt: skip
        numbers = [value for value in rungs if isinstance(value, int | float) and not isinstance(value, bool)]
        if self.contrast:
            unlike = {tuple(_field_names(rung)) for rung in rungs} != {tuple(names)} or len(set(rungs)) < len(rungs)
            # with weights of any size, any effect would be smaller than what matters
            most, size = max(2, len(rungs) / 2), round(math.fsum(map(abs, self.contrast)) / 2, 6)
            sums = abs(math.fsum(self.contrast)) < 1e-9 and 1 <= size <= most
            if unlike or not sums or len(self.contrast) != len(rungs):
                raise ValueError(f"contrast: expected a weight for each of {LEAST_RUNGS} different settings or more of "
                                 f"the same fields, in sum 0, and those above 0 in sum 1 to {most:g}; found "
                                 f"{list(self.contrast)}")  # fmt: skip
        elif len(numbers) < len(rungs) or any(second <= first for first, second in pairwise(numbers)):
            raise ValueError(f"ladder: expected numbers from the lowest to the highest for a trend; found "
                             f"{', '.join(map(str, rungs))}; name them in order")  # fmt: skip
        if (self.moderator or rungs) and self.matched == "episodes":
            raise ValueError("matched: expected equal steps for an interaction or a trend; found equal episodes")
        return self


class Propose(_ActionModel):
    """Put hypotheses on the board, or say that a search for the best values comes first."""

    action: Literal["propose"] = "propose"
    hypotheses: tuple[ProposedHypothesis, ...] = Field(default=(), max_length=MOST_HYPOTHESES)
    """One to three hypotheses; none if `search` is true."""
    metric: str = Field(default="", max_length=160)
    """What runs are judged by, as `metrics` among the facts names it, such as 'episodes:0.7'; empty for `metric`."""
    search: StrictBool = False
    """Whether the topic asks which values are best, so that a screen must find the arms that are then confirmed."""
    tested: str = Field(default="", max_length=MOST_LEFT_OUT)
    """What of the topic your hypotheses put to the test, in a sentence for its author, who reads it first."""
    not_tested: str = Field(default="", max_length=MOST_LEFT_OUT)
    """What of the topic your hypotheses leave out and why, in a sentence for its author; empty for nothing."""
    why: str = Field(default="", max_length=MOST_LEFT_OUT)
    """Of a round after the first: why this is asked next, from what the rounds before found, in a sentence. Of what was
    answered here before: why it is asked again, naming the finding. Else empty."""
    node: Word = ""
    """The id of the question of your plan that this is; empty for another question, or without a plan."""

    @model_validator(mode="after")
    def _check_search(self) -> Self:
        if self.search == bool(self.hypotheses):
            found = "both" if self.search else "neither"
            raise ValueError(f"expected one to three hypotheses, or `search` true and none; found {found}")
        arms = {(entry.variable, entry.ladder) if entry.contrast else None for entry in self.hypotheses}
        alike = None not in arms and len(arms) == 1
        if len(self.hypotheses) > 1 and any(entry.moderator or entry.ladder for entry in self.hypotheses) and not alike:
            raise ValueError("an interaction or a trend takes arms of its own: expected it alone, or contrasts of one "
                             "ladder; found others beside it")  # fmt: skip
        return self


class Constant(_ActionModel):
    """A job field that all arms share at a value other than its default."""

    field: str
    """Name of any job field; not one that a hypothesis varies, and not `steps`."""
    value: Scalar
    """Its value in every arm."""


class ProposedKnob(_ActionModel):
    """A job field that a screen varies."""

    field: str
    """Name of the job field."""
    values: tuple[Scalar, ...] = Field(min_length=2, max_length=12)
    """The values it may take, from low to high where they have an order; the default among them is not needed."""
    control: Scalar | None = None
    """What the control has, such as the best value of an earlier round; null for the job's own value."""


class ProposedScreen(_ActionModel):
    """A search: candidates are trained shortly with one seed, and the best of them are then confirmed on fresh seeds.

    The control has the job's values of the knobs, or those that you name; the claim on each confirmed candidate is
    written by code.
    """

    knobs: tuple[ProposedKnob, ...] = Field(min_length=1, max_length=MOST_KNOBS)
    """The fields that are searched, each once."""
    confirm: StrictInt = Field(default=1, ge=1, le=MOST_CONFIRMED)
    """How many of the best candidates are compared with the control afterwards."""
    predicted_low: Number
    """Lower end of your 80 % interval for metric(best) - metric(control): of success rates between -1 and 1."""
    predicted_high: Number
    """Upper end of that interval."""
    probability: Number = Field(ge=0, le=1)
    """Probability you give to the best candidate being shown to be better than the control at the 5 % level."""
    smallest_effect: Number | None = Field(default=None, gt=0)
    """The smallest difference of the metric that would matter: at most the study's, or null for that."""

    @model_validator(mode="after")
    def _check_knobs(self) -> Self:
        _check_interval(self.predicted_low, self.predicted_high)
        names = [knob.field for knob in self.knobs]
        if len(set(names)) < len(names):
            raise ValueError(f"expected each knob once; found {', '.join(names)}")
        return self


class ProposedRule(_ActionModel):
    """One line of the decision table, which works at every look and while you are away."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    """A short name of lower-case words with hyphens."""
    when: Condition
    """What the verdict at a look is."""
    then: Literal["continue", "settle", "replicate"]
    """More seeds, no more runs, or the same comparison in the replication's environment."""


class ProposedReplication(_ActionModel):
    """The same comparison once more in another environment, on fresh seeds."""

    environment: str
    """Name of the other environment."""


class ProposeDesign(_ActionModel):
    """Ask for a comparison of all proposed hypotheses in one environment, or for the screen that finds the arms."""

    action: Literal["design"] = "design"
    environment: str
    """Name of the environment that is trained and evaluated on."""
    seeds_per_arm: StrictInt = Field(default=MOST_SEEDS, ge=LEAST_SEEDS, le=MOST_SEEDS)
    """Of older turns: a proposal. How many seeds there are follows from the promised power and the budget, by code."""
    steps: StrictInt | None = Field(default=None, ge=1)
    """Training steps of every run; null for the default."""
    extend_to: StrictInt | None = Field(default=None, ge=1)
    """Steps to which code makes all runs longer where the first ones, arms not told apart, still rise; null for the
    study's own, as many as `steps` for none. Once runs begin nobody is asked about it."""
    constants: tuple[Constant, ...] = Field(default=(), max_length=8)
    """Other job fields to hold at a value of your choice in all arms; usually empty."""
    screen: ProposedScreen | None = None
    """The screen, if you proposed a search; null otherwise."""
    decision_table: tuple[ProposedRule, ...] = Field(default=(), max_length=8)
    """Your own rules, the first that holds decides; where none holds, no more seeds. Empty for the default table."""
    evaluate_apart: EvaluateApart = False
    """Where a knob of the environment is varied: whether each arm is evaluated at its own value, so that the task
    itself differs between them, in place of all at the control's; 'both' for the control's, which judges, and after
    training each at its own, too, which claims nothing. Where `prompt` or `agent` is varied, 'agent' has hidden tasks
    played with each arm's own code, so that agent and policy are measured together."""
    replication: ProposedReplication | None = None
    """Where a supported claim is tried once more; null for nowhere."""
    repairs: StrictInt | None = Field(default=None, ge=0, le=MOST_REPAIRS)
    """How often code that crashes early in training may be repaired, with all arms begun anew; null for the study's."""
    not_tested: str = Field(default="", max_length=MOST_LEFT_OUT)
    """What of the topic the design leaves out besides, and why, in a sentence for its author; empty for nothing."""


class GoOn(_ActionModel):
    """Go on to the next look, as the decision table has it."""

    action: Literal["continue"] = "continue"
    reason: str = Field(default="", max_length=MOST_NOTED)
    """Why, in a sentence."""


class Settle(_ActionModel):
    """Give up what is open: no more runs of this round, and no claim by it."""

    action: Literal["settle"] = "settle"
    reason: str = Field(min_length=1, max_length=MOST_NOTED)
    """Why, in a sentence."""


class Repair(_ActionModel):
    """Give another text of the code that crashed: all arms begin anew with it, on fresh seeds."""

    action: Literal["repair"] = "repair"
    code: str = Field(max_length=MOST_BYTES)
    """The whole source, in the same form, which does what the name and the hypothesis say and does not crash."""
    reason: str = Field(default="", max_length=MOST_NOTED)
    """What was wrong, in a sentence."""


class Conclude(_ActionModel):
    """End the study: the verdicts stand as code computed them."""

    action: Literal["conclude"] = "conclude"
    reason: str = Field(min_length=1, max_length=1000)
    """Why nothing more needs to be done, in a sentence or two; no verdict is changed by it."""


class Write(_ActionModel):
    """Answer the topic, after the verdicts: numbers and verdicts are references, which code fills in."""

    action: Literal["write"] = "write"
    answer: str = Field(min_length=1, max_length=1500)
    """What is known now about the topic, and what is not."""
    mechanism: str = Field(default="", max_length=1000)
    """By which mechanism, and what of the runs points to it; empty where nothing does."""
    limits: str = Field(default="", max_length=1000)
    """Where it may not hold, and what was not tested."""
    figures: tuple[AnswerFigure, ...] = Field(default=(), max_length=2)
    """Up to two figures that show what you mean."""


class Review(_ActionModel):
    """Say which sentences of an answer the facts do not bear out."""

    action: Literal["review"] = "review"
    unsupported: tuple[StrictInt, ...] = Field(default=(), max_length=60)
    """Their numbers in `sentences`."""


class Decline(_ActionModel):
    """Answer no hypothesis to the topic: the study ends, with your reason quoted in its report."""

    action: Literal["decline"] = "decline"
    reason: str = Field(min_length=1, max_length=1000)
    """Why the topic cannot, or should not, be tested here, in a sentence or two."""


class Tried(_ActionModel):
    """One thing to try: the job under all arms with these fields set."""

    settings: tuple[Constant, ...] = Field(default=(), max_length=4)
    """The fields and their values; none for the job as it is."""


class Explore(_ActionModel):
    """Have a few runs made before you ask, on search tasks: no claim, and no level spent."""

    action: Literal["explore"] = "explore"
    environment: Word
    """Name of the environment."""
    tried: tuple[Tried, ...] = Field(min_length=1, max_length=MOST_TRIED)
    """What is tried; of fewer than six the job as it is is made too."""
    steps: StrictInt | None = Field(default=None, ge=1)
    """Training steps of each, of whatever length the time carries; null for half of a whole run."""
    seeds: StrictInt = Field(default=1, ge=1, le=3)
    """Runs of each thing tried, on seeds that all share: 1, or more to see how far chance alone moves it."""
    why: str = Field(min_length=1, max_length=MOST_LEFT_OUT)
    """What you want to see, in a sentence."""


class Replicate(_ActionModel):
    """Put an earlier claim of this inquiry to the test once more, on fresh seeds; code builds the same comparison."""

    action: Literal["replicate"] = "replicate"
    claim: Word
    """The claim's id, as `inquiry` has it, such as h1 or r2h1."""
    environment: Word = ""
    """Name of the environment; empty for the one in which it was tested."""
    why: str = Field(default="", max_length=MOST_LEFT_OUT)
    """What makes you ask it again, in a sentence."""
    predicted_low: Number | None = None
    """Lower end of your 80 % interval for the difference now; null, as the two below, for the prediction of then."""
    predicted_high: Number | None = None
    probability: Number | None = Field(default=None, ge=0, le=1)
    node: Word = ""
    """The id of the question of your plan that this is; empty for another question, or without a plan."""


class Note(_ActionModel):
    """Keep a thought in your notebook, which later turns show you; the turn goes on."""

    action: Literal["note"] = "note"
    text: str = Field(min_length=1, max_length=MOST_NOTED)
    """The thought: an idea to try, a doubt, what surprised you. The report quotes it as yours."""


class Revise(_ActionModel):
    """Withdraw or narrow an idea in your notebook, with the reason; the turn goes on."""

    action: Literal["revise"] = "revise"
    about: Word
    """The idea's id in your notebook, such as idea-12."""
    text: str = Field(default="", max_length=MOST_NOTED)
    """The idea as it stands now, narrower; empty where it is withdrawn."""
    reason: str = Field(min_length=1, max_length=MOST_NOTED)
    """Why, in a sentence."""


class AskUser(_ActionModel):
    """Ask the user something; nobody waits for the answer, and the turn goes on."""

    action: Literal["ask"] = "ask"
    text: str = Field(min_length=1, max_length=MOST_NOTED)
    """The question. An answer, if there is one, stands among the user's notes in a later turn."""


class Plan(_ActionModel):
    """Write down the questions you mean to ask and what is to follow from each verdict; it binds nothing, and the turn
    goes on."""

    action: Literal["plan"] = "plan"
    nodes: tuple[PlanNode, ...] = Field(min_length=1, max_length=8)
    """The whole plan, in the place of the one before; a question that is asked already keeps its id."""
    text: str = Field(min_length=1, max_length=MOST_NOTED)
    """Why this plan; of a later one, what made you change it."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [node.id for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError(f"expected each node once; found {', '.join(names)}")
        return self


SideAction = Note | Revise | AskUser | Plan
"""What may be said beside an action, and uses no turn up."""
Action = Annotated[
    Propose | ProposeDesign | Conclude | Write | Review | Decline | Replicate | Explore | GoOn | Settle | Repair |
    SideAction, Field(discriminator="action"),
]  # fmt: skip


def as_json(value: Setting) -> JsonValue:
    return {entry.field: entry.value for entry in value} if isinstance(value, tuple) else value


def _field_names(value: Setting) -> list[str]:
    return sorted(entry.field for entry in value) if isinstance(value, tuple) else []


def _check_interval(low: float, high: float) -> None:
    if low > high:
        raise ValueError(f"predicted_low must not exceed predicted_high; found {low} and {high}")
