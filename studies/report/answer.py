"""A planner's answer to the topic, and its plan with branches, scored.

References (`{h1.estimate}`, `{arm:group_size=16.mean}`) stand in an answer where numbers and verdicts belong, and code
looks them up each time it is shown. A round is held to the plan as it stood when the round was locked, so that nobody
draws the branches around the data; nothing is computed from a plan but its score.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final

from studies.log.entries import PlannerNote
from studies.log.study import StudyState
from studies.records.design import Design
from studies.records.procedure import PlanNode
from studies.records.verdict import AnswerFigure, one_line, quoted
from studies.report import wording
from studies.report.elements import Block, Quote, Row, Section, Text, arm_interval, drawing, format_mean, section, table
from studies.report.evidence import Evidence
from studies.report.figure_data import hidden_curves, metric_curves
from studies.report.prose import mark
from studies.report.summary import words_at_end
from studies.report.wording import NONE, format_signed, number, percent, plural, span
from studies.verdicts.judge import find_collapsed_runs
from studies.verdicts.wording import deciding_interval

END: Final = "the end"
OUTSIDE: Final = "a question outside the plan"
_BRANCHES: Final = {
    "supported": "if_supported", "refuted": "if_refuted", "equivalent": "if_equivalent", "inconclusive": "if_unknown",
    "invalid": "if_unknown",
}  # fmt: skip
HIDDEN: Final = "hidden/success"
"""What a figure calls the success on hidden tasks during training."""
_REFERENCE: Final = re.compile(r"\{([^{}]*)\}")
_DENIED: Final = re.compile(r"(?:\b(?:not|nor|neither|never|no|false|wrong)|n't)(?:\s+\w+){0,2}\s+$", re.IGNORECASE)
"""What turns the verdict that follows into another one."""
_TENS: Final = r"(?:twen|thir|for|fif|six|seven|eigh|nine)(?:ty|teen)"
_FREE: Final = re.compile(
    rf"\b(?:(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fourteen|many|{_TENS})[ -]?fold"
    rf"|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fourteen|{_TENS}|zero|per ?cent\w*"
    r"|(?:hundred|thousand|million|dozen)s?|hal(?:f|ves|ved)|thirds|quarters?|doubl\w+|twice|thrice|tripl\w+"
    r"|support(?:s|ed|ing)?|refut\w+|equivalen\w+|inconclusive\w*|invalid\w*|prov(?:e|es|ed|en|ing|ably)|proofs?"
    r"|dis(?:prov|confirm)\w+|confirm\w*|verified|falsif\w+|reject(?:s|ed)?|established|demonstrat\w+"
    r"|(?:in)?significan\w+|statistically|p-?values?|(?:no|any|without)(?: \w+)? (?:effect|difference|evidence))\b"
    r"|\bp\s*[<=>]|[%‰]",
    re.IGNORECASE,
)
"""Numbers in letters (`one` is mostly a pronoun) and words of a verdict, which an answer has by references alone."""


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What an answer may refer to and draw, and what may stand in it as it is."""

    references: Mapping[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    """Arms, claims, rounds and places: names, whatever digits they have."""
    logged: Mapping[int, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """The `arms` and logged `metrics` of each round whose files were read."""

    @classmethod
    def of(cls, state: StudyState, evidence: Mapping[int, Evidence]) -> "AnswerFacts":
        rounds = [(each, each.design) for each in state.rounds if each.design is not None]
        references = {"study.rounds": plural(len(rounds), "round"), "study.runs": plural(len(state.every_run), "run")}
        names, logged = set[str](), dict[int, Mapping[str, tuple[str, ...]]]()
        for each, design in rounds:
            known, arms = evidence.get(each.round), tuple(arm.name for arm in design.arms)
            names |= {design.environment, f"round {each.round}", *arms, *(claim.id for claim in design.hypotheses)}
            for key, text in (*_claim_facts(each, design), *_run_facts(each, design, known)):
                references[key] = text
                references.setdefault(re.sub(rf"@{each.round}(?=\.)", "", key), text)  # of the first round that has it
            if known is not None:
                keys = {key for run in known.runs.values() for key in run.curves}
                keys |= {HIDDEN for run in known.runs.values() if run.hidden}
                logged[each.round] = {"arms": arms, "metrics": tuple(sorted(keys))}
        return cls(references, frozenset(names), logged)

    def quote(self, text: str) -> str:
        """Return a text on one line with what its references say, and what of it is none and should be."""
        wrong = self.find_faults(text)
        said = _REFERENCE.sub(lambda at: self.references.get(at[1], f"[no such reference: {at[1]}]"), text)
        return one_line(said) + (f" (not by reference: {', '.join(wrong)})" if wrong else "")

    def find_faults(self, text: str) -> tuple[str, ...]:
        """Return what of a text stands there freely and may not: references to nothing, numbers, words of verdicts."""
        wrong = [at[0] for at in _REFERENCE.finditer(text) if at[1] not in self.references]
        wrong += [f"not {at[0]}" for at in re.finditer(r"\{\w+\.verdict\}", text) if _DENIED.search(text[: at.start()])]
        bare = _REFERENCE.sub(" … ", text)
        chars = "".join(char if char.isnumeric() else unicodedata.normalize("NFKD", char) for char in bare)
        plain = "".join(char for char in chars if unicodedata.category(char) not in ("Mn", "Me", "Cf"))
        for name in sorted(self.names, key=len, reverse=True):
            plain = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\d|\w)", " … ", plain, flags=re.IGNORECASE)
        for word in plain.split():
            letters = {unicodedata.name(char, "?").split()[0] for char in word if char.isalpha()}
            if any(char.isnumeric() or char in "{}" for char in word) or ("LATIN" in letters and len(letters) > 1):
                wrong.append(word.strip(".,;:()"))
        wrong += [at[0] for at in _FREE.finditer(plain)]
        return tuple(dict.fromkeys(text if len(text) <= 40 else f"{text[:39]}…" for text in wrong))

    def find_undrawable(self, figure: AnswerFigure) -> str | None:
        known = self.logged.get(figure.round, {"arms": (), "metrics": ()})
        strange = {*figure.arms} - {*known["arms"]} | {figure.metric} - {*known["metrics"]}
        return f"round {figure.round} has none of {', '.join(sorted(strange))}" if strange else None

    def check(self, texts: Mapping[str, str], figures: Iterable[AnswerFigure]) -> list[str]:
        """Return a sentence for each text, by its name, and each figure that cannot be taken as it is."""
        faults = ((name, self.find_faults(text)) for name, text in texts.items())
        told = [f"{name}: expected numbers and verdicts as references; found {', '.join(f)}" for name, f in faults if f]
        return told + [f"figures: {why}" for figure in figures if (why := self.find_undrawable(figure)) is not None]

    def payload(self) -> dict[str, Any]:
        """Return what a planner is shown of it: single runs and courses are named by their form alone."""
        hidden = r"run:|.*\)$" if len(self.logged) > 1 else r"run:|.*\)$|arm:.*@"
        shown = {name: text for name, text in self.references.items() if not re.match(hidden, name)}
        forms = ["run:RUN.value", "arm:ARM@ROUND.first(METRIC)", "arm:ARM@ROUND.last(METRIC)"]
        return {"references": shown, "more_references": forms, "may_be_drawn": self.logged}


def _claim_facts(state: StudyState, design: Design) -> Iterator[tuple[str, str]]:
    for verdict in state.verdicts:
        claim, unit = design.hypothesis(verdict.hypothesis), design.metric.unit
        interval = deciding_interval(design, verdict)
        facts = {
            "verdict": wording.label(claim, verdict).lower(), "runs": wording.describe_counts(verdict),
            "estimate": wording.in_unit(format_signed(verdict.estimate, unit=unit), design.metric),
            "p": wording.p_value(verdict.p if verdict.p_adjusted is None else verdict.p_adjusted),
            "control": wording.setting(claim, claim.control), "treatment": wording.setting(claim, claim.treatment),
            "predicted": span(claim.prediction.low, claim.prediction.high, unit=unit),
        }  # fmt: skip
        if interval is not None:
            facts |= {name: format_signed(getattr(interval, name), unit=unit) for name in ("low", "high")}
            facts |= {"interval": span(interval.low, interval.high, unit=unit), "level": percent(interval.level)}
        if design.equivalence_margin is not None:
            facts["margin"] = wording.format_size(design.equivalence_margin, design.metric)
        for each in verdict.mediators:
            facts[f"by({each.metric}).result"] = each.result
            facts[f"by({each.metric}).estimate"] = format_signed(each.estimate)
        yield from ((f"{claim.id}.{name}", text) for name, text in facts.items())


def _run_facts(state: StudyState, design: Design, evidence: Evidence | None) -> Iterator[tuple[str, str]]:
    metric, fallen, known = design.metric, find_collapsed_runs(state), {} if evidence is None else evidence.runs
    for arm in design.arms:
        values = {run: value for run, value in state.values(arm.name).items() if run not in fallen}
        name, numbers = f"arm:{arm.name}@{state.round}", list(values.values())
        yield from ((f"{name}.mean", format_mean(metric, numbers)), (f"{name}.runs", plural(len(numbers), "run")))
        if (interval := arm_interval(metric, numbers)) is not None:
            yield f"{name}.interval", span(interval.low, interval.high, unit=metric.unit)
        yield from ((f"run:{run}.value", number(value, unit=metric.unit)) for run, value in values.items())
        curves = [known[run].curves for run in values if run in known]
        for key in sorted(set[str]().union(*curves)):
            if all(curve.get(key) for curve in curves):
                yield f"{name}.first({key})", number(fmean(curve[key][0][1] for curve in curves))
                yield f"{name}.last({key})", number(fmean(curve[key][-1][1] for curve in curves))


def list_sentences(*texts: str) -> tuple[str, ...]:
    return tuple(part for text in texts for part in re.split(r"(?<=[.!?])\s+", one_line(text)) if part)


def answer_section(state: StudyState, evidence: Mapping[int, Evidence]) -> Section | None:
    """Return a planner's answer to the topic, under its name, with what code looked up in it and what it could not."""
    if (said := state.said) is None or (answer := said.answer) is None:
        return None
    facts = AnswerFacts.of(state, evidence)
    beside = (("Mechanism: ", answer.mechanism), ("Limits: ", answer.limits))
    lines = (facts.quote(said.text), *(lead + facts.quote(text) for lead, text in beside if text))
    blocks: list[Block | None] = [Quote(lines, f"{said.by}, not a finding")]
    for place, figure in enumerate(answer.figures, start=1):
        if facts.find_undrawable(figure) is not None:  # its names are the planner's words
            blocks.append(Text(f"Figure {place} could not be drawn: there is no such metric, arm or round.", "aside"))
            continue
        each, known = next(entry for entry in state.rounds if entry.round == figure.round), evidence[figure.round]
        data = hidden_curves(each, known) if figure.metric == HIDDEN else metric_curves(each, known, figure.metric)
        if data is not None and figure.arms:
            data = replace(data, arms=tuple(arm for arm in data.arms if arm.arm in figure.arms))
        blocks.append(drawing(f"answer-{place}", "chosen", data))
    reading = "A second reading by the same model named no sentence without support"
    if answer.unsupported is None:
        reading = f"No second reading: {answer.unread}"
    elif answer.unsupported:
        found = "; ".join(quoted(facts.quote(sentence)) for sentence in answer.unsupported)
        reading = f"Without support, by a second reading: {found}"
    filled = "Code looked up each number and verdict that is a reference; the sentences are the model's"
    blocks.append(Text(f"{filled}. {reading}.", "aside"))
    return section(f"The topic, answered by {said.by}", *blocks, id="answer")


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """A question of a plan as it stood before the data of its round, or stands now, and what came of it."""

    node: PlanNode
    round: int | None = None
    verdicts: str = ""
    branch: str | None = None
    """Where the branch of its verdict led: a node's id or the end; None where no branch tells."""
    came: str = ""
    """What came next: a node's id, another question, or the end; empty where nothing came that the planner chose."""

    @property
    def followed(self) -> bool | None:
        return None if self.branch is None or not self.came else self.branch == self.came


def score_plan(state: StudyState) -> tuple[NodeOutcome, ...]:
    """Return the questions of the planner's plan in its order, those that it dropped after asking them last."""
    plans = [note for note in state.notebook if note.kind == "plan"]
    if not plans:
        return ()
    rounds = [each for each in state.rounds if each.locked is not None]
    asked = [_find_node(state, each, plans) for each in rounds]
    outcomes = {node.id: NodeOutcome(node) for node in plans[-1].nodes}
    nexts = [OUTSIDE if node is None else node.id for node in asked[1:]] + [END if words_at_end(state) else ""]
    for each, node, came in zip(rounds, asked, nexts, strict=False):
        if node is not None:
            ends = {_BRANCHES[verdict.verdict] for verdict in each.verdicts} if not each.open_claims else set()
            branch = (getattr(node, ends.pop()) or END) if len(ends) == 1 else None
            verdicts = ", ".join(f"{verdict.hypothesis} {verdict.verdict}" for verdict in each.verdicts)
            outcomes[node.id] = NodeOutcome(node, each.round, verdicts, branch, came)
    return tuple(outcomes.values())


def _find_node(state: StudyState, asked: StudyState, plans: list[PlannerNote]) -> PlanNode | None:
    turns = (act for act in reversed(state.planner_acts) if act.turn.startswith(f"{asked.round}/propose/"))
    name = next((act.node for act in turns if act.action in ("propose", "replicate")), "")
    before = [plan for plan in reversed(plans) if asked.locked is not None and plan.seq < asked.locked.seq]
    return next((node for plan in before for node in plan.nodes if node.id == name), None)


def plan_section(state: StudyState) -> Block | None:
    """Return what the planner foresaw and what came; None where it made no plan."""
    if not (outcomes := score_plan(state)):
        return None
    went, rows = {True: "followed", False: "left", None: NONE}, list[Row]()
    for outcome in outcomes:
        question = quoted(mark(outcome.node.question, state.rounds))
        asked = "not asked" if outcome.round is None else f"round {outcome.round}"
        told = (cell or NONE for cell in (outcome.verdicts, outcome.branch, outcome.came))
        rows.append((outcome.node.id, question, asked, *told, went[outcome.followed]))
    versions = sum(note.kind == "plan" for note in state.notebook)
    turns = [outcome.followed for outcome in outcomes if outcome.followed is not None]
    said = (
        f"The planner's own plan, which binds nothing, in {plural(versions, 'version')} that its notebook holds; a "
        f"round is held to the one that stood before its data. Branches followed: {sum(turns)} of {len(turns)}."
    )
    columns = ("Node", "Question, quoted", "Asked in", "Verdicts", "Its branch leads to", "What came", "")
    return section("Planned, and what came", Text(said), table(columns, rows), id="plan")
