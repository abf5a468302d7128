"""Statistics: pure functions from numbers to estimates, intervals and power.

May enter: tests, intervals, levels and power. Which runs count, and what may be claimed, is in `studies.verdicts`; how
many seeds a study gets is in `research/design/sample_size.py`.
"""
