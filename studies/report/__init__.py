"""The page a study ends with."""

from studies.report.build import Report, build_report

__all__ = ["Report", "build_report"]
