"""The advantage estimators, policy losses and rollout corrections that verl 0.9.1 has by name, known without verl.

Promises: the names are exactly verl's (a test in verl's environment compares them with its registries); a name that
this backend cannot compute says what it needs and which one to take; a field of the job that a name leaves without a
meaning is refused. Knows nothing of how anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class Estimator:
    """How rewards become advantages. `refused`: what it needs, and which one to take; "" where it is computed."""

    refused: str = ""
    normalizes: bool = False
    """Whether it heeds the job's `normalize_advantage`."""
    critic: bool = False
    """Whether a critic, which learns beside the policy, says what each token is worth."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss of the policy. `refused`: as an estimator's."""

    refused: str = ""
    clips: bool = True
    """Whether it heeds `clip_ratio` and `clip_ratio_high`."""
    dual_clips: bool = False
    """Whether it heeds `dual_clip`."""
    weighs: bool = True
    """Whether it heeds `loss_weighting`: else each episode weighs the same."""
    whole: bool = False
    """Whether a token's term depends on others', so that each micro-batch must see the whole minibatch."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Off-policy weights and rejections. `loss`: of one that bypasses the proximal policy, which is a loss itself."""

    loss: PolicyLoss | None = None


ESTIMATORS: Final[Mapping[str, Estimator]] = {
    "grpo": Estimator(normalizes=True),
    "grpo_vectorized": Estimator(normalizes=True),
    "grpo_passk": Estimator(normalizes=True),
    "reinforce_plus_plus": Estimator(),
    "reinforce_plus_plus_baseline": Estimator(),
    "rloo": Estimator(),
    "rloo_vectorized": Estimator(),
    "opo": Estimator(),
    "gpg": Estimator(),
    "gae": Estimator(critic=True),
    "remax": Estimator("the reward of a greedy answer to each task; take rloo"),
    "optimal_token_baseline": Estimator("the sum of squared probabilities at each token; take opo"),
    "tir_optimal_token_baseline": Estimator("the sum of squared probabilities at each token; take opo"),
    "gdpo": Estimator("several rewards of each episode; take grpo"),
}
POLICY_LOSSES: Final[Mapping[str, PolicyLoss]] = {
    "vanilla": PolicyLoss(dual_clips=True),
    "dppo_tv": PolicyLoss(),
    "dppo_kl": PolicyLoss(),
    "gspo": PolicyLoss(whole=True),
    "sapo": PolicyLoss(clips=False, weighs=False),
    "gpg": PolicyLoss(clips=False),
    "clip_cov": PolicyLoss(whole=True),
    "kl_cov": PolicyLoss(clips=False, whole=True),
    "geo_mean": PolicyLoss(weighs=False, whole=True),
    "cispo": PolicyLoss(),
    "dro": PolicyLoss("a dro_beta, for which a job has no field; take cispo"),
    "bypass_mode": PolicyLoss("a rollout correction; take verl.rollout_correction bypass_ppo_clip or bypass_pg_is"),
}
_CLIP_REJECTED: Final = PolicyLoss(dual_clips=True, whole=True)
_REINFORCE_BY_SEQUENCES: Final = PolicyLoss(clips=False, whole=True)
CORRECTIONS: Final[Mapping[str, Correction]] = {
    "decoupled_token_is": Correction(),
    "decoupled_seq_is": Correction(),
    "decoupled_token_icepop": Correction(),
    "decoupled_seq_is_rs": Correction(),
    "decoupled_geo_rs": Correction(),
    "decoupled_geo_rs_seq_tis": Correction(),
    "decoupled_geo_rs_token_tis": Correction(),
    "decoupled_k3_rs": Correction(),
    "decoupled_k3_rs_seq_tis": Correction(),
    "decoupled_k3_rs_token_tis": Correction(),
    "bypass_ppo_clip": Correction(PolicyLoss(dual_clips=True)),
    "bypass_ppo_clip_geo_rs": Correction(_CLIP_REJECTED),
    "bypass_ppo_clip_k3_rs": Correction(_CLIP_REJECTED),
    "bypass_pg_is": Correction(_REINFORCE_BY_SEQUENCES),
    "bypass_pg_token_icepop": Correction(PolicyLoss(clips=False)),
    "bypass_pg_geo_rs": Correction(_REINFORCE_BY_SEQUENCES),
    "bypass_pg_geo_rs_seq_tis": Correction(_REINFORCE_BY_SEQUENCES),
    "bypass_pg_geo_rs_token_tis": Correction(_REINFORCE_BY_SEQUENCES),
    "disabled": Correction(),
}
Kind = Literal["advantage_estimator", "policy_loss", "rollout_correction"]
_TABLES: Final[Mapping[Kind, Mapping[str, Estimator | PolicyLoss | Correction]]] = {
    "advantage_estimator": ESTIMATORS,
    "policy_loss": POLICY_LOSSES,
    "rollout_correction": CORRECTIONS,
}


def require_known(kind: Kind, name: str) -> str:
    """Return the name; raise ValueError where verl has none such, or it needs what this backend does not have."""
    found = _TABLES[kind].get(name)
    if found is None:
        there = ", ".join(known for known, each in _TABLES[kind].items() if not getattr(each, "refused", ""))
        raise ValueError(f"verl.{kind}: expected one of {there}; found {name!r}")
    if not isinstance(found, Correction) and found.refused:
        raise ValueError(f"verl.{kind}: {name} needs {found.refused} instead")
    return name


@dataclass(frozen=True, slots=True)
class Named:
    """The names that a job says; None: this project's own, by the job's other fields."""

    estimator: str | None = None
    policy_loss: str | None = None
    correction: str | None = None

    @property
    def has_critic(self) -> bool:
        """Whether a critic learns beside the policy."""
        return self.estimator is not None and ESTIMATORS[self.estimator].critic

    @property
    def bypass(self) -> bool:
        """Whether the correction takes the policy that sampled for the proximal one, and is the loss itself."""
        return self.correction is not None and CORRECTIONS[self.correction].loss is not None

    @property
    def loss(self) -> str | None:
        """The name under which verl has the loss; None where it is this project's."""
        return "bypass_mode" if self.bypass else self.policy_loss

    @property
    def kind_of_loss(self) -> PolicyLoss | None:
        """What is known of that loss."""
        if self.correction is not None and self.bypass:
            return CORRECTIONS[self.correction].loss
        return None if self.policy_loss is None else POLICY_LOSSES[self.policy_loss]

    def require_meaning(self, changed: Mapping[str, Any]) -> None:
        """Raise ValueError for a field of the job that the names leave without a meaning, or that says another one.

        changed: the job's fields that are not their defaults.
        """
        if self.bypass and self.policy_loss is not None:
            raise ValueError(
                f"verl.policy_loss {self.policy_loss!r} means nothing with verl.rollout_correction {self.correction}, "
                f"which is a loss itself: leave one of the two out, or name a correction that begins with decoupled_"
            )
        loss = f"verl.rollout_correction {self.correction}" if self.bypass else f"verl.policy_loss {self.policy_loss}"
        for said, meaningless in (
            (f"verl.advantage_estimator {self.estimator}", self._estimator_stands_for()),
            (loss, self._loss_stands_for(changed.get("algorithm"))),
            (f"verl.rollout_correction {self.correction}", self._correction_stands_for()),
        ):
            for name in meaningless:
                if name in changed:
                    raise ValueError(f"{name} {changed[name]!r} means nothing with {said}: leave one of the two out")

    def _estimator_stands_for(self) -> list[str]:
        if self.estimator is None:
            return []
        return ["algorithm"] if ESTIMATORS[self.estimator].normalizes else ["algorithm", "normalize_advantage"]

    def _loss_stands_for(self, algorithm: str | None) -> list[str]:
        kind = self.kind_of_loss
        if kind is None:
            return []
        found = [] if kind.clips else ["clip_ratio", "clip_ratio_high"]
        found += [] if kind.dual_clips else ["dual_clip"]
        found += [] if kind.weighs else ["loss_weighting"]
        # a part of two algorithms is in the loss: gspo's ratios, and dr_grpo's weights
        found += ["algorithm"] if algorithm == "gspo" or (algorithm == "dr_grpo" and not kind.weighs) else []
        return found

    def _correction_stands_for(self) -> list[str]:
        return [] if self.correction is None else ["rollout_correction", "correction_cap"]
