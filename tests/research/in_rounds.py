"""A synthetic study of two rounds, of at most three: what a consumer of a study's runs and verdicts has to see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from research.installation.home import Home
from studies import EventLog, EventType, StudyState
from studies.log.event_log import lock_name, write_lock
from studies.records.alpha import AlphaLedgers
from studies.records.design import Design, NoisePlan, RunSpec
from studies.records.procedure import InterimAnalysis
from studies.records.runs import noise_spec
from tests.studies.synthetic import STUDY, Synthetic, Ticking, base_job, design, hypothesis

WHY = "group_size = 32 is the rung above."
MOST = 3


class InRounds(Synthetic):
    @classmethod
    def of(cls, home: Home, study: str = STUDY) -> InRounds:
        found = cls(home.study(study), study=study)
        found.log.close()
        found.log = EventLog(home.database, clock=Ticking())
        return found

    def ask(self, control: int = 4, treatment: int = 16, seeds: int = 5, **changes: Any) -> Design:
        """Lock the design of the round that is to be locked, with the levels that the ledgers give it."""
        state = self.state()
        before = state.rounds_before[-1] if state.rounds_before else None
        ledgers = AlphaLedgers.begin(MOST) if before is None else before.ledgers.after(before.outcome)
        place = ledgers.next_place("" if before is None else str(before.design_hash))
        claim = hypothesis("h1" if state.round == 1 else f"r{state.round}h1", treatment, control=control)
        usual = design((claim,), seeds=seeds)
        shift = 1000 * (state.round - 1)
        given: dict[str, Any] = {
            "alpha": place.difference, "inquiry": place, "seeds": tuple(seed + shift for seed in usual.seeds),
            "looks": (InterimAnalysis(seeds=seeds, alpha=place.difference, equivalence=place.equivalence),),
        }  # fmt: skip
        self.design = Design.model_validate({**usual.model_dump(), **given, **changes})
        for entry in self.design.hypotheses:
            self.append(EventType.HYPOTHESIS_PROPOSED, **entry.model_dump(mode="json"))
        name = lock_name(state.round)
        lock = write_lock(self.folder, self.design, name)
        self.append(EventType.DESIGN_LOCKED, design=self.design.model_dump(mode="json"), hash=lock, file=name)
        return self.design

    def answer(self) -> None:
        for spec in self.plan():
            self.run(spec)
        self.judge()

    def begin_next(self, why: str = WHY) -> None:
        state = self.state()
        self.append(EventType.ROUND_BEGUN, number=state.round + 1, previous=state.design_hash, why=why)

    def noise(self, seeds: tuple[int, ...] = (7, 8)) -> Iterator[RunSpec]:
        plan = NoisePlan(
            environment="guess", job=self.design.base_job, seeds=seeds, metric_key=self.design.metric.key,
            episodes=self.design.metric.episodes,
        )  # fmt: skip
        lock = plan.hash()
        self.append(EventType.NOISE_PLANNED, plan=plan.model_dump(mode="json"), hash=lock, seconds_per_run=10.0)
        for seed in seeds:
            spec = noise_spec(self.study, plan, lock, seed)
            self.append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
            self.run(spec)
            yield spec

    def two_rounds(self, **base: Any) -> StudyState:
        """Write two whole rounds, of which the second is not concluded; `base` are more fields of the job."""
        self.means |= {"group_size=4": 0.52, "group_size=16": 0.66, "group_size=32": 0.80}
        self.create()
        self.ask(base_job=base_job(**base))
        self.answer()
        self.begin_next()
        self.ask(16, 32, base_job=base_job(**base, group_size=16))
        self.answer()
        return self.state()
