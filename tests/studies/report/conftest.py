from __future__ import annotations

import pytest


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures empty where only the text of a report is tested: drawing them takes most of its time."""
    from studies.report import plots

    monkeypatch.setattr(plots, "render_cached", lambda *_: '<svg xmlns="http://www.w3.org/2000/svg"></svg>')
