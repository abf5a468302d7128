from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from research.shown.tokens import order_calls
from research.ui.episodes import PRUNED, EpisodePlace, SeenEpisode
from research.ui.pages.episode import MOST_SPANS, MOST_TOKENS, page, piece, words_of
from research.ui.site import Site, render
from swarm.wire import CallRecord, EpisodeRecord, EpisodeSummary, TokenSpan
from tests.research.shown.records import BRANCHED, call, episode
from tests.research.ui.conftest import view_of

Shown = Callable[..., str]
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[2J"


def long_record(calls: int, context: int, sampled: int) -> EpisodeRecord:
    """Return an episode of random tokens, every second one of its context special."""
    rng = random.Random(0)

    def made(index: int) -> CallRecord:
        ids = tuple(rng.randrange(200) for _ in range(sampled))
        shown = TokenSpan(ids=(1,) * context, texts=("a",) * context, special=tuple(range(0, context, 2)))
        logprobs = tuple(-rng.expovariate(0.5) for _ in ids)
        said = TokenSpan(ids=ids, texts=("w ",) * sampled, logprobs=logprobs, versions=(3,) * sampled)
        return CallRecord(index=index, parent=index - 1 if index else None, drift="clean", context=shown, sampled=said)

    return episode(*map(made, range(calls)))


class Readers:
    """Stands for episodes that a server would tell of."""

    def __init__(self, *records: EpisodeRecord, missing: str = "") -> None:
        self.records, self.missing = records, missing

    def of_server(self, name: str) -> EpisodePlace:
        return EpisodePlace(Path(name))

    def list(self, place: EpisodePlace) -> Sequence[EpisodeSummary]:
        return self.records

    def read(self, place: EpisodePlace, name: str) -> SeenEpisode:
        return SeenEpisode(next(each for each in self.records if each.id == name), self.missing)


@pytest.fixture
def shown(site: Site) -> Iterator[Shown]:
    def look(readers: Readers, name: str, **query: str) -> str:
        site.readers = readers  # type: ignore[assignment]
        view = replace(view_of(server="mine", episode=name), query={key: (value,) for key, value in query.items()})
        return render(page(site, view), view)

    before = site.readers
    yield look
    site.readers = before


def pieces(record: EpisodeRecord, *, whole: bool) -> Iterator[tuple[int, str]]:
    """Yield the index of its call and the text of every element, piece by piece, and hold each to what a page holds."""
    start: int | None = 0
    while start is not None:
        calls, following = piece(record, start, whole=whole)
        words = [word for each in calls for word in each.words]
        assert len(words) + 8 * len(calls) <= MOST_SPANS + 20
        assert sum(word.tokens for word in words) <= MOST_TOKENS
        assert following is None or following > start
        yield from ((each.call.index, word.text) for each in calls for word in each.words)
        start = following


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("calls", "context", "sampled"), [(20, 1000, 4000), (1, 100, 60_000), (2_000, 0, 5), (3, 9, 0)]
)
def test_a_long_episode_comes_in_pieces_that_hold_each_token_once_and_in_order(
    calls: int, context: int, sampled: int, whole: bool
) -> None:
    record = long_record(calls, context, sampled)
    seen = dict[int, str]()
    for index, text in pieces(record, whole=whole):
        seen[index] = seen.get(index, "") + text
    expected = {each.index: "".join(each.context.texts + each.sampled.texts) for each, _ in order_calls(record.record)}
    assert seen == {index: text for index, text in expected.items() if text}


def test_neighbours_of_one_level_are_one_element_that_tells_each_of_them() -> None:
    words = list(words_of(BRANCHED.record[1], 0, 10))
    assert [(word.look, word.sampled, word.tokens) for word in words] == [
        ("special", False, 1), ("", False, 4), ("special", False, 1), ("l2", True, 4),
    ]  # fmt: skip
    told = words[-1].told.splitlines()
    assert [line.split(":")[0] for line in told] == ["t0 Nice", "t1 ,", "t2 of", "t3 course"]
    assert all("log-prob −1.000, p 0.368, v3" in line for line in told)
    apart = [word for word in words_of(BRANCHED.record[1], 0, 10, whole=True) if word.sampled]
    assert [(word.name, word.tokens, word.value) for word in apart][:2] == [
        ("call-1.t0", 1, "−1.000"), ("call-1.t1", 1, "−1.000"),
    ]  # fmt: skip


def test_the_page_shows_what_models_said_as_it_is_and_nothing_of_it_acts(shown: Shown, site: Site) -> None:
    hostile = episode(call(0, None, "start", HOSTILE, "<|end|>"), id="e-1", task_id=HOSTILE, owner=HOSTILE)
    for query in ({}, {"tokens": "all"}):
        html = shown(Readers(hostile, missing=HOSTILE), "e-1", **query)
        assert "<img" not in html
        assert not set(html) & {"\u202e", "\x1b"}
        assert "style=" not in html


def test_the_page_names_versions_training_the_group_and_its_neighbours(shown: Shown) -> None:
    fields = {"group": "t#1", "step": 2}
    records = [
        BRANCHED.model_copy(update={"id": f"e-{number}", "reward": float(number), **fields}) for number in range(3)
    ]
    html = shown(Readers(*records), "e-1", order="worst")
    assert re.findall(r'rel="(prev|next)" href="([^"]+)"', html) == [
        ("prev", "/servers/mine/e/e-0?order=worst"), ("next", "/servers/mine/e/e-2?order=worst"),
    ]  # fmt: skip
    assert "group of 3 plays" in html
    assert html.count("· trained on") == 5
    assert "v3 ·" in html
    played = records[0].model_copy(update={"kind": "eval"})
    assert "· trained on" not in shown(Readers(played), "e-0")


def test_what_is_missing_is_said_and_without_texts_there_are_ids(shown: Shown) -> None:
    gone = BRANCHED.model_copy(update={"record": ()})
    assert "checkpoints_kept" in PRUNED
    assert "checkpoints_kept" in shown(Readers(gone, missing=PRUNED), "e-1")
    bare = TokenSpan(ids=(41, 42), texts=(), logprobs=(-0.1, -0.1), versions=(0, 0))
    one = CallRecord(index=0, parent=None, drift="start", context=TokenSpan(ids=(), texts=()), sampled=bare)
    assert "41 42 " in shown(Readers(episode(one)), "e-1")
