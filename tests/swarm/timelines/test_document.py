"""The worked example of docs/timelines.md is what the code gives."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "timelines.md").read_text()


def test_the_worked_example_prints_what_the_document_says() -> None:
    code, printed = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", TEXT, re.DOTALL)[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert out.getvalue() == printed


def test_the_table_of_ratios_is_the_benchmarks() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "merge_ratio.json").read_text())["workloads"]
    counted: dict[tuple[int, ...], tuple[float, float]] = {
        (row["P"], row["a"], row["o"], row["T"], row["n"]): (row["unmerged/linear"], row["unmerged/tree"])
        for row in figures
    }
    rows = re.findall(r"^\| ([\d,]+) \| (\d+)[^|]* \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", TEXT, re.M)
    assert len(rows) == 7
    for *sizes, linear, tree in rows:
        assert counted[tuple(int(size.replace(",", "")) for size in sizes)] == (float(linear), float(tree))
