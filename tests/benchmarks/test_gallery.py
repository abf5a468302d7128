"""The gallery: each study holds, and the index says what it says."""

from __future__ import annotations

from pathlib import Path

import gallery
import pytest


@pytest.mark.parametrize("folder", gallery.folders(), ids=lambda folder: folder.name)
def test_a_study_of_the_gallery_holds_up_to_the_head_and_says_what_the_index_says(folder: Path) -> None:
    kept, page = gallery.read_study(folder), (gallery.GALLERY / "README.md").read_text().splitlines()
    assert kept.drift is None
    assert gallery.make_command(kept) in page
    assert gallery.make_line(kept) in page
