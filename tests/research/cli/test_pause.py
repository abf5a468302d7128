"""`ajet study pause`, and `resume` of a study whose controller lives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.cli.study import steering
from research.installation.home import Home
from research.study.one_controller import controlling
from studies import EventLog, EventType
from studies.log import leases
from tests.research.cli.conftest import Ajet
from tests.studies.synthetic import STUDY, Synthetic, Ticking


@pytest.fixture
def running(home: Path) -> Synthetic:
    """A locked study in the installation's own database, of which a run goes on."""
    installation = Home.locate().prepare()
    synthetic = Synthetic(installation.study(STUDY))
    synthetic.log.close()
    synthetic.log = EventLog(installation.database, clock=Ticking())
    synthetic.create()
    synthetic.lock()
    synthetic.launch(synthetic.plan()[0])
    return synthetic


@pytest.fixture
def driven(running: Synthetic) -> Iterator[Synthetic]:
    """The same with a controller that lives."""
    installation = Home.locate()
    with (
        closing(EventLog(installation.database)) as log,
        controlling(installation, log, STUDY, lambda line: None),
    ):
        yield running


def test_a_pause_is_said_with_the_way_on(ajet: Ajet, driven: Synthetic) -> None:
    ended = ajet("study", "pause")
    assert ended.code == 0
    assert f"go on with: ajet study resume {STUDY}" in " ".join(ended.out.split())
    assert driven.state().paused_reason == "paused by the user"
    assert json.loads(ajet("study", "show", "--json").out)["status"] == "paused"


def test_resuming_beside_a_controller_that_lives_says_where_the_study_goes_on(ajet: Ajet, driven: Synthetic) -> None:
    ajet("study", "pause")
    ended = ajet("study", "resume")
    assert ended.code == 0
    assert f"ajet study watch {STUDY}" in ended.out


def test_a_controller_that_lives_goes_on_with_a_paused_study_when_it_is_resumed(ajet: Ajet, driven: Synthetic) -> None:
    ajet("study", "pause")
    assert ajet("study", "resume", "--json").code == 0
    assert driven.state().paused_reason is None
    before = driven.state().event_count
    ended = ajet("study", "resume")
    assert ended.code == 2
    assert "drives it" in ended.line
    assert driven.state().event_count == before, "it was not paused any more"


def test_a_study_that_is_driven_is_handed_to_nobody_else(ajet: Ajet, driven: Synthetic) -> None:
    driven.append(EventType.STUDY_PAUSED, reason="lunch")
    for _ in range(2):  # paused, and running
        ended = ajet("study", "resume", "--detach")
        assert ended.code == 0
        assert "goes on under the controller that has it" in ended.out
        assert driven.state().paused_reason is None


def test_a_study_that_an_earlier_boot_drove_is_handed_over(
    ajet: Ajet, home: Path, driven: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(steering, "worker_of", lambda home: lambda study: given.append(study) or "address")
    monkeypatch.setattr(leases, "_boot", lambda: "the boot after")
    assert ajet("study", "resume", "--detach").code == 0
    assert given == [STUDY]


@pytest.mark.parametrize("how", ["paused", "stopped", "concluded"])
def test_what_stands_still_cannot_be_paused(ajet: Ajet, driven: Synthetic, how: str) -> None:
    type = {
        "paused": EventType.STUDY_PAUSED,
        "stopped": EventType.STUDY_STOPPED,
        "concluded": EventType.STUDY_CONCLUDED,
    }
    driven.append(type[how], reason="x")
    before = driven.state().event_count
    ended = ajet("study", "pause", STUDY)
    assert ended.code == 2
    assert f"{STUDY} is {how}; there is nothing to pause" in ended.line
    assert driven.state().event_count == before
