"""What is imitated is what a server shows and samples, or the model is refused in one line."""

from __future__ import annotations

import random

import pytest

from swarm.backends.imitation.rows import rows_of
from swarm.backends.protocols import BackendError
from swarm.backends.rendering.renderer import HFRenderer
from swarm.backends.tiny import model as tiny
from swarm.backends.tiny.tokenizer import build_tokenizer
from swarm.backends.tiny.warm_start import assistant_labels, encode_plays
from swarm.environments import get_environment
from tests.swarm.backends.local.models import TEMPLATE


@pytest.mark.parametrize("name", ["guess", "arith", "market"])
def test_a_tiny_model_imitates_what_a_server_would_show_and_sample(name: str) -> None:
    environment, rng = get_environment(name), random.Random(0)
    tokenizer = tiny._tokenizer(environment)
    renderer = HFRenderer(tokenizer)
    for task in environment.tasks("train")[::40]:
        play = environment.demonstrate(task, rng)
        (row,), (ids,) = rows_of(renderer, play), encode_plays(tokenizer, [play])
        assert list(row.ids) == ids[: len(row.ids)]
        assert all(label < 0 for label in assistant_labels(tokenizer, ids)[len(row.ids) :])
        wanted = [token if sampled else -100 for token, sampled in zip(row.ids, row.sampled, strict=True)]
        assert wanted == assistant_labels(tokenizer, ids)[: len(row.ids)]


def test_a_template_that_knows_no_tools_is_refused() -> None:
    market = get_environment("market")
    tokenizer = build_tokenizer([], 2048)
    tokenizer.chat_template = TEMPLATE
    with pytest.raises(BackendError, match=r"writes tools and their calls.*found no word of the tool price; choose"):
        rows_of(HFRenderer(tokenizer), market.demonstrate(market.tasks("train")[0], random.Random(0)))


def test_a_template_that_writes_no_calls_is_refused() -> None:
    market = get_environment("market")
    tokenizer = build_tokenizer([], 2048)
    tokenizer.chat_template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + TEMPLATE
    task = market.tasks("train")[0]
    play = next(p for seed in range(99) if len((p := market.demonstrate(task, random.Random(seed))).messages) > 2)
    with pytest.raises(BackendError, match=r"for a call of price; choose"):
        rows_of(HFRenderer(tokenizer), play)
