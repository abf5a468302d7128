"""Checks: what the data themselves say against a comparison, by rules that no verdict is needed for.

May enter: a module for each rule about data. They look at data; what is checked before the lock is in
`research/design`. What a claim becomes by them is in `studies.verdicts`.
"""
