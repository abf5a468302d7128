"""What the studies of an installation found: verdicts beside their conditions, and the recipe of a study.

May enter: what is read off verdicts that stand, over studies and rounds, and questions about it. Nothing here computes
a verdict (`studies.verdicts`) or draws on an error ledger; how it is shown is in `research.cli`.
"""
