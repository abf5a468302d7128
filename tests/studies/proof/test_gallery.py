"""What the gallery ships verifies, by whatever version its report was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.proof import exported, verify

GALLERY = Path(__file__).parents[3] / "studies" / "gallery"


@pytest.mark.parametrize("folder", sorted(path for path in GALLERY.iterdir() if path.is_dir()), ids=lambda p: p.name)
def test_a_study_in_the_gallery_holds(folder: Path) -> None:
    study, rows, broken = exported(folder)
    assert verify(study, rows, folder, known=broken).drifts == ()
