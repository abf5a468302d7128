"""Figures: the data of each, and how it is drawn.

May enter: what is drawn (`series.py`) and how (`drawing.py`). Colours are in `studies/report/parts/theme.py`. To add
one: its data and its drawing here, a field of `ReportView` or of a part of it (`studies/report/view.py`), a line of
`_figures` (`studies/report/build.py`), and its place in `report.md.jinja` and in `report.html.jinja`.
"""
