"""Several claims in one study: at which level each of them is judged.

Promises. The claims on one variable are a family. Dunnett's test corrects among the arms of a family; Benjamini and
Hochberg choose among the m families, by the smallest corrected p of each; in the R chosen families everything is
judged at the level R alpha / m. This is Benjamini & Bogomolov 2014 (JRSS B 76, 297-318), which holds the expected
share of wrong claims in the chosen families at alpha; with one variable it is Dunnett's test alone, and with one arm
for each variable it is Benjamini & Hochberg 1995, whose intervals of level 1 - R alpha / m have the false coverage
rate alpha (Benjamini & Yekutieli 2005, JASA 100). A claim is made exactly when its interval leaves out zero.

Does not know. Which hypotheses are claims: the caller passes one p for each family, 1 where there is none yet.
"""

from __future__ import annotations

from collections.abc import Sequence


def effective_level(families: Sequence[float], alpha: float) -> float:
    """Return the level at which every claim is judged: max(1, R) alpha / m for m families with these p-values.

    With R = 0 no family's p is at most alpha / m, and with R > 0 none outside the chosen is at most R alpha / m: the
    one level decides all of them.
    """
    if not families:
        raise ValueError("an effective level needs at least one family; found none")
    return max(1, chosen(families, alpha)) * alpha / len(families)


def chosen(families: Sequence[float], alpha: float) -> int:
    """Return R, how many families Benjamini and Hochberg's procedure chooses at `alpha`."""
    if len(families) == 1:
        return int(families[0] <= alpha)
    from statsmodels.stats.multitest import multipletests  # takes a second, which one family need not wait for

    return int(multipletests(list(families), alpha=alpha, method="fdr_bh")[0].sum())
