"""What the gallery ships verifies, by whatever version its report was made, up to the heads that its page names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from studies.proof import exported, verify

GALLERY = Path(__file__).parents[3] / "studies" / "gallery"


@pytest.mark.parametrize("folder", sorted(path for path in GALLERY.iterdir() if path.is_dir()), ids=lambda p: p.name)
def test_a_study_in_the_gallery_holds(folder: Path) -> None:
    study, rows, broken = exported(folder)
    page = (GALLERY / "README.md").read_text()
    (head,) = re.findall(rf"ajet study verify studies/gallery/{folder.name} --head (\w+)", page)
    assert verify(study, rows, folder, head=head, known=broken).drifts == ()
