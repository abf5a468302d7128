"""A report for a reader that cannot open files beside it carries every picture inside."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from research.orchestration.shown.pictures import with_pictures
from studies.report import build_report
from tests.studies.synthetic import Synthetic


def test_each_figure_of_a_report_is_inside(tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path)
    report = build_report(synthetic.whole(), tmp_path)
    markdown = report.markdown.read_text()
    files = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", markdown)
    assert files
    inside = re.findall(r"!\[[^\]]*\]\(data:image/(?:svg\+xml|png);base64,([^)]+)\)", with_pictures(markdown, tmp_path))
    assert [base64.b64decode(data) for data in inside] == [(tmp_path / name).read_bytes() for name in files]


def test_what_is_not_there_stays_as_it_is(tmp_path: Path) -> None:
    text = "![a](figures/gone.svg) ![b](https://example.org/b.png) [c](figures/c.svg)"
    assert with_pictures(text, tmp_path) == text


def test_pictures_come_to_so_many_bytes_at_most(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(b"\x89PNG" + bytes(300))
    text = with_pictures("![a](a.png) ![b](b.png) ![c](c.png)", tmp_path, most=1000)
    assert text.count("](data:image/png;base64,") == 2
    assert text.endswith("(`c.png` is too large to be shown here)")
    assert len(text) < 1100
