"""A flight simulator: studies fly through the shipped loop against training whose truth was planted.

Nothing here trains a model. What is simulated says so wherever it leaves a trace: labels, logs, a study's machine.
"""
