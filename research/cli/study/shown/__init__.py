"""What commands show of studies: a list, a summary, progress on a screen. Nothing of it drives one.

May enter: `research.cli`, and packages below it; what plans or drives studies may not, as a list would wait for it.
"""
