"""The design compiler's parts: a proposal becomes a design that can be locked, sized and paid for, or is refused.

A refusal says what would work. Pure functions of values.

May enter: what is checked, sized and priced before the lock. A new check before the lock is called in
`DesignCompiler.compile` and raises DesignRefused (`headroom.py` is an example). The types of what is proposed are in
`research.proposals`; what collected data say is in `studies.checks`.
"""
