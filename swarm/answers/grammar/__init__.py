"""What the formats share: the parts of an answer, steps of a reader, JSON as written, and grammars of forced calls.

May enter: what names no family.
"""
