"""Whether an effect on all tasks is one on any kind of them: Simpson's paradox, brought about by unlike mixes of tasks.

Arms that were evaluated on the same tasks cannot show it; it is looked for all the same, as the mixes may differ for a
reason that nobody recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from studies.checks.confounds import Violation
from studies.checks.job_fields import Pair, claim_of
from studies.records.design import Design


def lint_subgroups(
    design: Design,
    hypothesis: str,
    control: Mapping[str, Mapping[str, tuple[int, int]]],
    treatment: Mapping[str, Mapping[str, tuple[int, int]]],
    names: Pair | None = None,
) -> tuple[Violation, ...]:
    """Return whether an effect on all tasks is one on no group of them (Simpson's paradox).

    The maps give, by run, the (solved, played) evaluation episodes of each group of tasks.
    """
    arms, _ = claim_of(design, hypothesis, names)
    left, right = _summed(control.values()), _summed(treatment.values())
    groups = sorted(left.keys() & right.keys())
    effects = {name: _rate(right[name]) - _rate(left[name]) for name in groups}
    whole = _rate(_total(right, groups)) - _rate(_total(left, groups)) if groups else 0.0
    if len(groups) < 2 or not whole or any(effect * whole >= 0 for effect in effects.values()):
        return ()
    told = ", ".join(f"{effect:+.3f} in {name}" for name, effect in effects.items())
    sentence = (
        f"{arms[1].name} differs from {arms[0].name} by {whole:+.3f} over all tasks but by {told}: the effect turns "
        "around in every group, as the arms were evaluated on different mixes of them"
    )
    return (Violation("subgroup", sentence, blocks=True),)


def _summed(runs: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, (solved, played) in run.items():
            before = total.get(name, (0, 0))
            total[name] = before[0] + solved, before[1] + played
    return {name: counts for name, counts in total.items() if counts[1]}


def _total(groups: Mapping[str, tuple[int, int]], names: Iterable[str]) -> tuple[int, int]:
    chosen = [groups[name] for name in names]
    return sum(solved for solved, _ in chosen), sum(played for _, played in chosen)


def _rate(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]
