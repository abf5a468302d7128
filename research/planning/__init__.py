"""Planning: what a planner is asked, in which turn, and what its answers become, from a topic to a locked design.

May enter: what stands between a study's state and a planner's action. What planners know and how they answer is in
`research.planner`, `research.rule_planner` and `research.llm_planner`; how a design is compiled in `research.design`.
"""
