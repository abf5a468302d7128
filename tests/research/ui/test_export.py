"""Pages on a disk are all there, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.errors import BadInput
from research.ui.export import export_pages
from research.ui.pages.addresses import PAGES
from research.ui.site import Site


def test_an_export_that_is_refused_leaves_nothing(site: Site, study: str, tmp_path: Path) -> None:
    run = next(run for run in site.state(study).every_run.values() if run.collected)
    assert run.collected is not None
    (site.folder(study) / run.collected["evaluation"]["path"]).write_text("{}")
    to = tmp_path / "out" / "pages"
    with pytest.raises(BadInput, match="verifies"):
        export_pages(site, PAGES, to)
    assert list(to.parent.iterdir()) == []
