"""The design compiler's parts: a proposal becomes a design that can be locked, sized and paid for, or is refused.

A refusal says what would work. Pure functions of values.
"""
