"""The inquiry: rounds of one study under one budget of error.

May enter: what holds over all rounds of a study and needs their verdicts alone. What is planned next is in `research`.
"""
