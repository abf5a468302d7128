"""Proposals: what may be proposed to a study, by a planner or by flags, as typed and checked values.

May enter: the types of what is proposed, and checks that need no prices and no noise. What is sized or priced is in
`research.design`; how a planner finds what to propose is in its own package.
"""
