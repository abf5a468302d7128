"""Noise: what seeds alone do to a metric, learned from collected runs.

The figures that are shipped lie here as JSON.

May enter: how noise is learned from collected runs, and one JSON file of shipped figures for each environment. How many
seeds follow from it is in `research.design`.
"""
