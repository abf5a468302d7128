"""Reports: a study's state and hashed files, turned into a page a reader can trust.

May enter: in this folder what puts the report together: its view, its templates, its files. What it says goes to
`sections`, its first lines to `headline`, pictures to `figures`, what these share to `parts`.
"""

from studies.report.build import Report, build_report
from studies.report.metric import draw_metric

__all__ = ["Report", "build_report", "draw_metric"]
