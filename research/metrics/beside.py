"""What a topic names beside the metric that runs are judged by: said first of what is not tested, for every planner."""

from __future__ import annotations

from collections.abc import Iterator

from research.metrics.asked import AskedMetric, form, known_kind
from research.metrics.reading import metric_in
from research.metrics.words import SPEED, THRESHOLD
from studies.metrics.kinds.success import Success


def not_judged(topic: str, judged: AskedMetric | None) -> tuple[str, ...]:
    """Return a sentence for each metric that a topic names and no verdict is about, with the way to ask for it."""
    judged = judged or AskedMetric(Success.name)
    said = metric_in(topic, judged.kind)
    if said is None:
        return ()
    same = [said.asked] if said.asked.kind == judged.kind else []
    others = said.others if same else (said.asked, *said.others)
    return (*(_sentence(other, judged) for other in others), *_otherwise(same, judged))


def _otherwise(named: list[AskedMetric], judged: AskedMetric) -> Iterator[str]:
    """Yield a sentence where the metric is judged that the topic names, but with another threshold, or of another."""
    for said in named:
        if said.text != judged.text:
            yield f"'{said.words}' asks for {said.text}, and runs are judged by {judged.text}, as --metric says."


def _sentence(other: AskedMetric, judged: AskedMetric) -> str:
    kind = known_kind(other.kind)
    way = f"--metric {form(kind) if 'of' in kind.takes and not other.of else other.text}"
    told = "the report has it among other measures, as exploratory" if _is_told(other, judged) else "nor is it measured"
    return (
        f"'{other.words}' asks for another metric, {kind.name} ({kind.title}), which no verdict here is about: {told}; "
        f"ask for it by {way}."
    )


def _is_told(other: AskedMetric, judged: AskedMetric) -> bool:
    """Return whether the files of runs that are judged by one metric give another one, as a report reads them."""
    if "of" in known_kind(other.kind).takes:
        return False
    return other.kind not in SPEED or (
        judged.kind in SPEED and other.threshold in (None, judged.threshold or THRESHOLD)
    )
