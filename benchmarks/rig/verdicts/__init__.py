"""Simulated studies judged by the shipped verdict: with planted noise, and with residuals of real trainings."""
