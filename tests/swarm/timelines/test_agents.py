"""Whatever agents do with their histories, every sampled token is trained once, in the context it was sampled in."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import FakeRenderer
from swarm.rendering.messages import Renderer
from swarm.timelines import linear_rows, token_counts, tree_tokens, unmerged_rows
from tests.swarm.timelines.agents import FAKE, FAKES, REAL, Agent
from tests.swarm.timelines.checks import check_packed, check_rows, distinct_prefixes
from tests.swarm.timelines.families import FAMILIES, Family, make_renderer

NUMBERS = st.lists(st.integers(0, 7 * 13 * 5 * 11 * 3 * 3 * 6 * 3 - 1), min_size=1, max_size=8)
GROUPS = st.lists(NUMBERS, min_size=1, max_size=2)


def check(family: Family, renderer: Renderer, group: list[list[int]]) -> None:
    names = itertools.count(1)
    agents = [Agent(family, renderer, names) for _ in group]
    for agent, numbers in zip(agents, group, strict=True):
        agent.play(numbers)
    episodes = [agent.desk.tree.nodes for agent in agents]
    linear, unmerged = 0, 0
    for agent in agents:
        nodes = agent.desk.tree.nodes
        rows, all_rows = linear_rows(nodes), unmerged_rows(nodes)
        check_rows(rows, agent.desk.calls)
        check_rows(all_rows, agent.desk.calls)
        counts = sum(len(row.ids) for row in rows), sum(len(row.ids) for row in all_rows)
        assert token_counts(nodes) == counts
        assert [node.index for node in nodes] == sorted(node.index for node in nodes)
        agent.check_fresh()
        linear, unmerged = linear + counts[0], unmerged + counts[1]
    check_packed([agent.desk.calls for agent in agents])
    assert tree_tokens(episodes) == distinct_prefixes(episodes) <= linear <= unmerged


@given(GROUPS, st.sampled_from(FAKES))
def test_every_view_trains_every_sampled_token_once(group: list[list[int]], renderer: type[FakeRenderer]) -> None:
    check(FAKE, renderer(), group)


@given(GROUPS, st.sampled_from(REAL))
def test_so_they_do_with_the_templates_of_all_families(group: list[list[int]], family: str) -> None:
    check(FAMILIES[family], make_renderer(family), group)
