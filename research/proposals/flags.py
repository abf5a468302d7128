"""What is asked, by flags or by a topic: what is varied over which values, what is held, and where.

`--vary group_size=4,16 --set steps=80 --env guess`. The first value of a field is the control.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from pydantic import BaseModel, ConfigDict

from research.errors import BadTopic, DesignRefused
from research.installation.base_job import require_agreement
from research.proposals.actions import MOST_RUNGS, MOST_TOGETHER, EvaluateApart
from research.proposals.arms import NO_MODELS, ComparedModels, Scalar, field_value, value_text, variables
from research.proposals.metric_choice import RequestedMetric
from research.proposals.slots import SLOTS, code_name
from research.text import did_you_mean
from studies.records.design import BUILT_IN, KNOB, LEAST_RUNGS, MODEL, MOST_MEDIATORS, PLAYING, is_expression
from swarm.job import Job

EXAMPLE = "--vary group_size=4,16 --env guess"
_VARY, _SET = f"--vary FIELD=VALUE,VALUE, such as {EXAMPLE}", "--set FIELD=VALUE, such as --set steps=80"
_INTERACTION = "such as --vary group_size=4,16 --vary learning_rate=0.001,0.003 --as interaction"
Shape = Literal["apart", "together", "interaction", "trend"]
"""How the fields of a comparison go: each against the control by itself; all of them in one arm; the effect of the
first as it depends on the second; the values of one along a straight line."""
Claim = Literal["increase", "decrease"]
_EVALUATE: Mapping[str, EvaluateApart] = {"control": False, "apart": True, "both": "both", "agent": "agent"}


@dataclass(frozen=True, slots=True)
class RequestedComparison:
    """What flags ask for; without any, the topic is read."""

    vary: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    """Fields and their values, the control first."""
    held: Mapping[str, Scalar] = field(default_factory=dict)
    """Fields that all arms have at a value of the user's."""
    environment: str | None = None
    """What is trained and measured on; None for what the topic names."""
    custom_environments: tuple[str, ...] = ()
    """Environments that the planner is shown beside those that are built in."""
    models: ComparedModels = NO_MODELS
    """The models that flags or the topic name, for a comparison of them."""
    code: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of the values of slots: what was written, and the source that it names."""
    shape: Shape = "apart"
    """How the varied fields go together."""
    mediators: tuple[tuple[str, Claim], ...] = ()
    """By what the treatments of the first question are said to act: a number of runs, and which way it should move."""
    evaluate_apart: EvaluateApart = False

    @classmethod
    def parse(
        cls, vary: Sequence[str], held: Sequence[str], base: Job | None = None, models: ComparedModels = NO_MODELS,
        shape: str | None = None, mediators: Sequence[str] = (), evaluate: str = "control",
    ) -> Self:  # fmt: skip
        """Return what flags say over a `base` job; raise BadTopic or DesignRefused for what no study can have."""
        code: dict[str, tuple[str, str]] = {}
        split = [_split(entry, _VARY) for entry in vary]
        varied = {name: _parse_code(name, text, code) if name in SLOTS else _parse_values(name, text, models)
                  for name, text in split}  # fmt: skip
        constant = {name: _parse_value(name, text) for name, text in (_split(entry, _SET) for entry in held)}
        if MODEL in varied and len(varied) > 1:
            others = " and ".join(name for name in varied if name != MODEL)
            raise BadTopic(
                f"expected models compared alone, as they are judged by what they gain; found {others} varied as well; "
                "ask in two studies"
            )
        require_agreement(base, {name: [value] for name, value in constant.items()})
        require_agreement(base, {name: [models.value(value) if name == MODEL else value for value in values]
                                 for name, values in varied.items()})  # fmt: skip
        if len(varied) < len(vary) or len(constant) < len(held) or varied.keys() & constant.keys():
            raise BadTopic("expected each field once among --vary and --set; found one twice; name it once")
        if constant and not varied:
            raise BadTopic(f"expected --set beside --vary; found it alone; say what is compared, such as {EXAMPLE}")
        joint = _parse_shape(shape, varied)
        acting = tuple(map(_parse_mediator, mediators))
        if len(acting) > MOST_MEDIATORS or len(dict(acting)) < len(acting):
            raise BadTopic(f"expected at most {MOST_MEDIATORS} --mediator, each once; found {', '.join(mediators)}")
        if (apart := _EVALUATE.get(evaluate)) is None:
            raise BadTopic(f"--evaluate: expected {', '.join(_EVALUATE)}; found {evaluate!r}")
        by_agent = apart == "agent"
        if apart and varied and not any(name in PLAYING if by_agent else name.startswith(KNOB) for name in varied):
            found = f"found {', '.join(varied)}; leave it out"
            raise BadTopic(
                f"expected --evaluate {evaluate} where {'agent or prompt' if by_agent else 'a knob'} is varied; {found}"
            )
        return cls(varied, constant, models=models, code=code, shape=joint, mediators=acting, evaluate_apart=apart)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return what a study's settings hold; nothing where an older version wrote them."""
        held = settings.get("wanted", {})
        vary = {name: tuple(values) for name, values in held.get("vary", {}).items()}
        models = ComparedModels.of(held.get("models", {}))
        brought = tuple(held.get("brought", ()))
        code = {name: tuple(known) for name, known in held.get("code", {}).items()}
        acting = tuple((metric, way) for metric, way in held.get("mediators", ()))
        shared = vary, dict(held.get("set", {})), held.get("environment"), brought, models, code
        return cls(*shared, held.get("as", "apart"), acting, held.get("evaluate_apart", False))

    def settings(self) -> dict[str, Any]:
        held: dict[str, Any] = {
            "vary": {name: list(values) for name, values in self.vary.items()},
            "as": "" if self.shape == "apart" else self.shape, "set": dict(self.held), "environment": self.environment,
            "brought": list(self.custom_environments), "models": self.models.settings(),
            "code": {name: list(known) for name, known in self.code.items()},
            "mediators": [list(entry) for entry in self.mediators], "evaluate_apart": self.evaluate_apart,
        }  # fmt: skip
        held = {name: value for name, value in held.items() if value}
        return {"wanted": held} if held else {}

    def find_conflict(self, environment: str) -> DesignRefused | None:
        if self.environment in (None, environment):
            return None
        return DesignRefused(
            f"expected a design in {self.environment}, which the user asks for; found {environment}; design it there"
        )

    def text(self) -> str:
        vary = [f"--vary {text}" for text in self.list_varied(shlex.quote)]
        shape = [f"--as {self.shape}"] if self.shape != "apart" else []
        held = [f"--set {name}={value_text(value)}" for name, value in self.held.items()]
        place = [f"--env {shlex.quote(self.environment)}"] if self.environment else []
        evaluated = [f"--evaluate {word}" for word, at in _EVALUATE.items() if at and at == self.evaluate_apart]
        acting = [f"--mediator {shlex.quote(f'{metric}={way}')}" for metric, way in self.mediators]
        return " ".join([*vary, *shape, *held, *place, *acting, *evaluated])

    def list_varied(self, quote: Callable[[str], str] = str) -> list[str]:
        """Return what each `--vary` takes, with folders and code as `quote` writes them."""
        written = {name: quote(known.folder) for name, known in self.models.by_name.items()}
        written |= {name: quote(text) for name, (text, _) in self.code.items()}
        own = (MODEL, *SLOTS)
        return [
            f"{name}={','.join(written.get(str(v), str(v)) if name in own else value_text(v) for v in values)}"
            for name, values in self.vary.items()
        ]


class ParsedTopic(BaseModel):
    """What a topic asks, as far as it was understood."""

    model_config = ConfigDict(frozen=True)

    vary: Mapping[str, tuple[Scalar, ...]] = {}
    """Fields and their values: of a comparison the control first, of a search the candidates."""
    held: Mapping[str, Scalar] = {}
    environment: str | None = None
    again: str | None = None
    """The environment in which a supported claim is tried once more."""
    shape: Shape = "apart"
    claim: Claim | None = None
    """Whether the treatment is said to be better or worse, whatever number that is; None for an open question."""
    equivalence: bool = False
    """Whether it is to be shown that there is no difference."""
    matched: Literal["steps", "episodes"] = "steps"
    """What of training the arms have equal."""
    confirm: int = 0
    """How many of the best candidates of a search are confirmed; 0 for a comparison."""
    metric: RequestedMetric | None = None
    left: tuple[str, ...] = ()
    """Runs of words that were not understood, as they are written."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self | None:
        """Return what a study's settings hold; None where flags ask or a model plans, and of older studies."""
        held = settings.get("reading")
        return None if held is None else cls.model_validate(held)

    def settings(self) -> dict[str, Any]:
        return {"reading": self.model_dump(mode="json", exclude_defaults=True)}

    @classmethod
    def from_flags(cls, wanted: RequestedComparison) -> Self:
        return cls(vary=wanted.vary, held=wanted.held, environment=wanted.environment, shape=wanted.shape)

    @property
    def plain_topic(self) -> str | None:
        """What was understood, where no flags can say it."""
        if not (self.confirm or self.matched == "episodes" or self.again):
            return None
        form, joint = ("{} ({})", ", ") if self.confirm else ("{} {}", " vs ")
        fields = [form.format(name, joint.join(map(value_text, values))) for name, values in self.vary.items()]
        best = {0: "", 1: "best "}.get(self.confirm, f"{self.confirm} best ")
        where = [f"on {self.environment}"] if self.environment else []
        held = [f"with {name} {value_text(value)}" for name, value in self.held.items()]
        equal = ["at the same number of episodes"] if self.matched == "episodes" else []
        again = [f"replicated on {self.again}"] if self.again else []
        return " ".join([best + " and ".join(fields), *where, *held, *equal, *again])

    def command(self, wanted: RequestedComparison) -> str:
        """Return the command that asks for what was understood, by flags where they can say it."""
        metric = f" --metric {self.metric.text}" if self.metric is not None else ""
        if self.plain_topic is not None:
            return f"ajet research {shlex.quote(self.plain_topic)}{metric}"
        asked = replace(wanted, vary=self.vary, held=self.held, environment=self.environment)
        return f"ajet research {asked.text()}{metric}"


def list_model_folders(vary: Sequence[str]) -> tuple[str, ...]:
    found = [values for name, _, values in (text.partition("=") for text in vary) if name.strip() == MODEL]
    return tuple(part.strip() for values in found for part in values.split(",") if part.strip())


def resolve_topic(topic: str | None, wanted: RequestedComparison) -> str:
    """Return what is asked: the topic, or the flags in its place; raise BadTopic for neither and for both."""
    said = (topic or "").strip()
    if said and wanted.vary:
        raise BadTopic("expected a topic or --vary; found both; leave one out, so that it is clear which is asked")
    if not said and not wanted.vary:
        raise BadTopic(
            'expected a topic, found nothing; say what to study, such as "Does a larger group size help?", or name it '
            f"by flags: {EXAMPLE}"
        )
    return said or wanted.text()


def _split(text: str, expected: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not values.strip():
        raise BadTopic(f"expected {expected}; found {text!r}; write the field, an equals sign and values")
    if name not in variables() and not (name in (MODEL, *SLOTS) and expected == _VARY):
        near = did_you_mean(name, variables()) or f"; they are {', '.join(variables())}"
        raise BadTopic(f"expected a field that can be varied; found {name!r}{near}")
    return name, values


def _parse_mediator(text: str) -> tuple[str, Claim]:
    metric, _, way = text.strip().rpartition("=")
    if not metric or way not in get_args(Claim):
        raise BadTopic(f"--mediator: expected METRIC=increase or METRIC=decrease (docs/mechanisms.md); found {text!r}")
    return RequestedMetric.parse(metric).text, cast(Claim, way)


def _parse_shape(text: str | None, vary: Mapping[str, tuple[Scalar, ...]]) -> Shape:
    shapes: tuple[Shape, ...] = get_args(Shape)
    if (shape := next((known for known in shapes if known == (text or "apart")), None)) is None:
        near = did_you_mean(text or "", shapes)
        raise BadTopic(f"--as: expected {', '.join(shapes[:-1])} or {shapes[-1]}; found {text!r}{near or ''}")
    if text is None or shape == "apart":
        return shape
    counts = {name: len(values) for name, values in vary.items()}
    found = " and ".join(f"{count} values of {name}" for name, count in counts.items()) or "no --vary"
    if MODEL in vary:
        raise BadTopic(f"expected models compared apart, as they are judged by what they gain; found --as {text}")
    if not vary.keys().isdisjoint(SLOTS):
        raise BadTopic(f"expected code compared apart; found --as {text}")
    if shape == "interaction" and list(counts.values()) != [2, 2]:
        raise BadTopic(f"--as interaction: expected two --vary with two values each; found {found}; {_INTERACTION}")
    if shape == "together" and (not 2 <= len(counts) <= MOST_TOGETHER or len(set(counts.values())) > 1):
        raise BadTopic(
            f"--as together: expected --vary of 2 to {MOST_TOGETHER} fields with as many values; found {found}"
        )
    rungs = next(iter(vary.values()), ())
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in rungs)
    if shape == "trend" and not (len(counts) == 1 and numeric and LEAST_RUNGS <= len(rungs) <= MOST_RUNGS):
        raise BadTopic(f"--as trend: expected one --vary with {LEAST_RUNGS} to {MOST_RUNGS} numbers; found {found}")
    return shape


def _parse_values(name: str, text: str, models: ComparedModels) -> tuple[Scalar, ...]:
    if name == MODEL:
        names = {known.folder: name for name, known in models.by_name.items()}
        folders = [names[part.strip()] for part in text.split(",") if part.strip()]
        if len(folders) < 2 or len(set(folders)) < len(folders):
            raise BadTopic(f"expected two model folders or more, each once; found {text!r}; the first is the control")
        return tuple(folders)
    values = tuple(_parse_value(name, part) for part in text.split(","))
    if len(values) < 2:
        raise BadTopic(f"expected two values of {name} or more; found {text!r}; the first is the control")
    if len(set(values)) < len(values):
        raise BadTopic(f"expected different values of {name} to compare; found {text}; name each once")
    return values


def _parse_code(slot: str, text: str, code: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return the names of a slot's values, and add their sources: of files by their names, of expressions by number."""
    depths = accumulate((character == "(") - (character == ")") for character in text)
    cut = "".join("\n" if (each, depth) == (",", 0) else each for each, depth in zip(text, depths, strict=True))
    control, *others = (part.strip() for part in cut.split("\n"))
    if control != BUILT_IN or not others:
        raise BadTopic(f"expected {slot}={BUILT_IN},FILE.py or {slot}={BUILT_IN},EXPRESSION; found {text!r}")
    names = [control]
    for part in others:
        name, source = f"expression-{len(code) + 1}", part if is_expression(part) else f"={part}"
        if part.endswith(".py"):
            try:
                name, source = re.sub("[^a-z0-9]+", "-", Path(part).stem.lower()).strip("-"), Path(part).read_text()
            except (OSError, ValueError) as error:
                raise BadTopic(f"expected a Python file of {slot}; found {part}: {error}") from error
        if name in code:
            raise BadTopic(f"expected files of different names, as arms are called by them; found {name} twice")
        code[name] = part, SLOTS[slot].check(source)
        names.append(code_name(slot, name))
    return tuple(names)


def _parse_value(name: str, text: str) -> Scalar:
    try:
        found = json.loads(text.strip())
    except ValueError:
        found = text.strip()
    if not isinstance(found, bool | int | float | str):
        raise BadTopic(f"expected a value of {name}; found {text!r}; write a number, true, false or a word")
    return field_value(name, found)
