"""The formats in which models write thinking and tool calls, one module per way; most are tagged and share its reader.

To add one, subclass `TaggedFormat` (or `PlainFormat`), name its marks in `detect.py` and add it to
`tests/swarm/answers/support.py`.

May enter: what one way of writing answers needs. What names no family goes to `swarm.answers.grammar`.
"""
