"""Lines that docs show, typed as they stand: those that need no server, no model, no hours and nothing of one's own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.research.cli.conftest import Ajet
from tests.studies.synthetic import STUDY, Synthetic

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TYPED = (
    "ajet env init", "ajet env check", "ajet env list", "ajet model list", "ajet study plan", "ajet study list",
    "ajet study verify", "ajet study export", "ajet findings", "ajet planner calibration",
    "ajet job explain", "ajet doctor", "ajet sandbox ls", "ajet swarm list",
)  # fmt: skip
PAGES = ("docs/environments.md", "docs/models.md", "docs/research.md", "docs/findings.md", "docs/operations.md")


def lines(page: str) -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    typed = [line for block in blocks for line in block.splitlines() if line.startswith(TYPED) and "--tiny" not in line]
    own = {"ID": STUDY, "FOLDER": "exported"}
    return [[own.get(word, word) for word in shlex.split(line, comments=True)[1:]] for line in typed]


@pytest.mark.timeout(900)  # a busy machine takes 200
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_can_be_typed(
    ajet: Ajet, finished: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = {" ".join(line): ajet(*line) for line in lines(page)}
    assert ended
    assert {line: one.err for line, one in ended.items() if one.code} == {}
