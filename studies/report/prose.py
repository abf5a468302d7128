"""What in a planner's prose no verdict, lock or mean bears out. This reads words, not meanings."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, get_args

from studies.log.study import StudyState
from studies.records.verdict import PlannerMessage, Verdict, VerdictName, describe_doubts, one_line, quote_message

_SAME: Final = {"proven": "supported", "proved": "supported", "confirmed": "supported", "disproved": "refuted"}
_VERDICT: Final = re.compile(
    rf"\b(?:{'|'.join((*get_args(VerdictName), *_SAME))}|(?:statistically )?significant(?:ly)?"
    r"|no (?:effect|difference))\b",
    re.IGNORECASE,
)
_CLAUSE: Final = re.compile(r"[.;:!?]\s|,|\b(?:and|but|while|whereas)\b", re.IGNORECASE)
_NEGATED: Final = re.compile(r"(?:\b(?:not|nor|neither|never|no)|n't)\s+$", re.IGNORECASE)
_CLAIM: Final = re.compile(r"\b(?:r(\d+))?[hs]\d+\b", re.IGNORECASE)
_ROUND: Final = re.compile(r"\bround (\d+)\b", re.IGNORECASE)
_NUMBER: Final = re.compile(
    r"(?<![\w.])(?P<sign>[-+\u2212]?)(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?P<exponent>e[-+]?\d+)?"
    r"(?P<share>\s*(?:%|percent\b|per cent\b|(?:percentage )?points?\b|pp\b))?(?!\w)",
    re.IGNORECASE,
)
_WORDS: Final = {"statement", "said", "mechanism", "falsifier", "confounds"}
_WHOLE: Final = 10.0
"""Facts from this size on may be rounded to a whole number."""


def find_contradictions(text: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the verdicts that a text names and the claims of each clause (by id, by round, or all) do not have."""
    wrong: list[str] = []
    for clause in _CLAUSE.split(text) if verdicts else ():
        ids, rounds = {at[0].lower() for at in _CLAIM.finditer(clause)}, set(_ROUND.findall(clause))
        spoken = [v for v in verdicts if v.hypothesis.lower() in ids] if ids else list(verdicts)
        if rounds and not ids:
            spoken = [v for v in verdicts if (at := _CLAIM.fullmatch(v.hypothesis)) and (at[1] or "1") in rounds]
        reached = {verdict.verdict for verdict in spoken}
        for word in _VERDICT.finditer(clause):
            name = _SAME.get(word[0].lower(), word[0].lower())
            meant = {"supported", "refuted"} if "significant" in name else {"equivalent"} if " " in name else {name}
            if not (reached and reached <= meant) and not _NEGATED.search(clause[: word.start()]):
                wrong.append(word[0])
    return tuple(dict.fromkeys(wrong))


def find_unfounded(text: str, facts: Any) -> tuple[str, ...]:
    """Return the numbers of a text that round no number in `facts`, as a share or per cent, with its sign."""
    known = tuple(_list_numbers(facts))
    found = (at for at in _NUMBER.finditer(text) if not any(_matches(at, fact) for fact in known))
    return tuple(dict.fromkeys(at[0].strip() for at in found))


def mark(text: str, rounds: Sequence[StudyState], *, more: Any = ()) -> str:
    """Return a planner's words on one line, with what in them is not so by verdicts, locks and means, and by `more`."""
    said = PlannerMessage(by="", text=text, unfounded=())
    return one_line(text) + describe_doubts(_add_doubts(said, rounds, more))


def _add_doubts(said: PlannerMessage, rounds: Sequence[StudyState], more: Any = ()) -> PlannerMessage:
    verdicts = [verdict for each in rounds for verdict in each.verdicts]
    if not verdicts or not rounds[0].asks_planner:
        return said
    arms = ((each, arm.name) for each in rounds for arm in (each.design.arms if each.design is not None else ()))
    means = [fmean(values) for each, arm in arms if (values := each.values(arm).values())]
    told = [verdict.model_dump(mode="json") for verdict in verdicts]
    facts = (rounds[0].topic, len(rounds), [lock_facts(each) for each in rounds], means, told, more)
    unfounded = dict.fromkeys((*(said.unfounded or ()), *find_unfounded(_CLAIM.sub("", said.text), facts)))
    wrong = dict.fromkeys((*said.contradicted, *find_contradictions(said.text, verdicts)))
    return said.model_copy(update={"unfounded": tuple(unfounded), "contradicted": tuple(wrong)})


def lock_facts(state: StudyState) -> Any:
    """Return what of a round a word on it may name: its lock but for words, and of the job its steps alone."""
    if (design := state.design) is None:
        return [hypothesis.model_dump(mode="json", exclude=_WORDS) for hypothesis in state.hypotheses]
    left_out: Any = {"base_job": True, "code": True, "hypotheses": {"__all__": _WORDS}}
    return design.base_job.get("steps"), len(design.seeds), design.model_dump(mode="json", exclude=left_out)


def why_asked(state: StudyState) -> str:
    """Return why a round was asked, in the words of whoever asked, held to the verdicts that were there by then."""
    return mark(state.why_asked, state.rounds_before, more=(state.round, lock_facts(state)))


def last_words(state: StudyState) -> str:
    """Return the planner's last words as a quotation; empty where it had none. An answer stands in the report."""
    if (said := state.said) is None or said.answer is not None:
        return "" if said is None else f"{said.by} answers the topic in the report"
    return quote_held(said, state.rounds)


def quote_held(said: PlannerMessage, rounds: Sequence[StudyState]) -> str:
    """Return a planner's words as a quotation, and behind it what in them is not so by these rounds."""
    return quote_message(_add_doubts(said, rounds))


def _read(found: re.Match[str]) -> tuple[float, float]:
    digits, exponent = found["digits"].replace(",", ""), found["exponent"] or ""
    sign = "-" if found["sign"] in ("-", "\u2212") else ""
    return float(f"{sign}{digits}{exponent}"), float(f"1{exponent}") * 10.0 ** -len(digits.partition(".")[2])


def _matches(found: re.Match[str], fact: float) -> bool:
    value, step = _read(found)
    if found["sign"] and fact * value < 0:
        return False
    shown = abs(fact) * (100.0 if found["share"] else 1.0)  # per cent, or points of a hundred
    if step >= 1 and not found["share"] and shown < _WHOLE:
        return shown == abs(value)
    return abs(shown - abs(value)) <= step / 2 * (1 + 1e-9)


def _list_numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, str):
        yield from (_read(found)[0] / (100.0 if found["share"] else 1.0) for found in _NUMBER.finditer(value))
    elif isinstance(value, Iterable):
        for entry in value:
            yield from _list_numbers(entry)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
