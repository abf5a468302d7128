"""The sections of a report, one module each: from state and evidence to tables and sentences.

May enter: what the report says about one matter. To add one: a module here that returns tables and sentences, a field
of `ReportView` or of a part of it (`studies/report/view.py`), a block in `report.md.jinja` and in `report.html.jinja`.
"""
