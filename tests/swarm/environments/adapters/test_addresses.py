"""Addresses of other packages' environments that cannot be had are refused in a line that says why."""

from __future__ import annotations

import sys

import pytest

from swarm.environments.adapters import ADAPTERS, adapted, slug
from swarm.errors import InvalidRequest
from tests.golden import refused


@pytest.mark.parametrize("scheme", ADAPTERS)
def test_a_missing_package_is_told_with_the_line_to_type(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = ADAPTERS[scheme]
    monkeypatch.setitem(sys.modules, adapter.package, None)
    with refused(InvalidRequest, adapter.package, adapter.example, f"pip install '{adapter.requirement}'"):
        adapted(adapter.example)


def test_a_long_address_is_cut_to_a_name() -> None:
    name = slug("reasoning-gym:" + "+".join(["leg_counting"] * 9))
    assert len(name) <= 64
    assert name[-1].isalnum()


@pytest.mark.usefixtures("adapted_packages")
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("gymnasium:FrozenLak-v1", "Did you mean"),
        ("gymnasium:CartPole-v1", "CartPole-v1 sees Box"),
        ("gymnasium:Pendulum-v1", "Pendulum-v1 takes Box"),
        ("gymnasium:FrozenLake-v1?ice=1", "unexpected keyword argument 'ice'"),
        ("gymnasium:FrozenLake-v1?p=0", "p 0.4 to 1"),
        ("gymnasium:FrozenLake-v1?size=2", "size 3 to 16"),
        ("gymnasium:FrozenLake-v1?map_name=4x4&is_slippery=false", "is one task; leave map_name"),
        ("reasoning-gym:chainsum", "did you mean chain_sum"),
        ("reasoning-gym:chain_sum?max_term=3", "did you mean max_terms"),
        ("reasoning-gym:chain_sum?allow_negation=5", "expected allow_negation=true"),
        ("reasoning-gym:chain_sum?max_terms=-3", "max_terms must be >= min_terms"),
        ("reasoning-gym:chain_sum+leg_counting?max_terms=3", "did you mean chain_sum.max_terms"),
        ("reasoning-gym:ransom_note", "poses the same in every process"),
        ("reasoning-gym:chain_sum?tasks=3", "expected tasks=16 or more"),
        ("textarena:TicTacToe-v0", "is for more players than one"),
        ("textarena:SpiteAndMalice-v0", "for one player"),
        ("textarena:Mastermin-v0", "did you mean Mastermind-v0"),
        ("textarena:Mastermind-v0?colour=3", "unexpected keyword argument 'colour'"),
    ],
)
def test_what_cannot_be_had_or_put_into_words_is_refused(address: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        adapted(address)
