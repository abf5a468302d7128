"""What a reader must know of the measure itself, and what other measures of the same runs say.

May enter: remarks on metrics and the table of those that nobody asked for. What a metric is, is in `studies.metrics`.
"""
