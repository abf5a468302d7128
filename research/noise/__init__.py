"""Noise: what seeds alone do to a metric, learned from collected runs.

The figures that are shipped lie here as JSON.
"""
