"""Verdicts: from the runs of two arms and a locked rule to what may be claimed. Pure functions of values.

May enter: how claims are judged, checked again and put into a sentence. Formulas are in `studies.statistics`, what
speaks against data in `studies.checks`; when a verdict is due is in `research.scheduling`.
"""
