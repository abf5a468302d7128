"""A test repeated until it is significant: seed after seed, looked at each time, as nobody should.

One change of one knob after another; control and change get a seed each until Welch's test of all seeds so far says
p < alpha, or the patience is over. What is significant is claimed, and kept where it is better.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean

from simlab.searches.run_budget import RunBudget, SearchClaim, SearchOutcome
from simlab.worlds.world import Configuration, World


@dataclass(frozen=True)
class UntilSignificant:
    """Tests each change anew with every further pair of seeds, at the full level each time."""

    name: str = "test until significant"
    alpha: float = 0.05
    fewest: int = 2
    most: int = 10
    """Seeds of each arm at which it is looked at first, and at last."""

    def search(self, world: World, control: Configuration, budget: float, seed: int) -> SearchOutcome:
        """Search until the budget is spent."""
        bill, source = RunBudget(world, budget, seed), random.Random(seed)
        kept, claims = dict(control), list[SearchClaim]()
        while True:
            name = source.choice(list(world.knobs))
            tried = {**kept, name: source.choice([value for value in world.knobs[name] if value != kept[name]])}
            if not bill.affords(kept) or not bill.affords(tried):
                return bill.found(kept, claims)
            better = self._tested(bill, kept, tried)
            if better is not None:
                claims.append(SearchClaim(tried, kept) if better else SearchClaim(kept, tried))
                kept = tried if better else kept

    def _tested(self, bill: RunBudget, kept: Configuration, tried: Configuration) -> bool | None:
        """Return whether the change is better; None where no look said so before patience or budget were over."""
        from scipy import stats

        old, new = list[float](), list[float]()
        while len(old) < self.most and bill.affords(kept):
            old.append(bill.score(kept))
            if not bill.affords(tried):
                return None
            new.append(bill.score(tried))
            if len(old) >= self.fewest and stats.ttest_ind(new, old, equal_var=False).pvalue < self.alpha:
                return fmean(new) > fmean(old)
        return None
