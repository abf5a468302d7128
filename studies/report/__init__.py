"""Reports: a study's state and hashed files, turned into a page a reader can trust."""

from studies.report.build import Report, build_report
from studies.report.metric import draw_metric

__all__ = ["Report", "build_report", "draw_metric"]
