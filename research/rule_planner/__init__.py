"""The rule planner: from a topic that was read to proposals, by written rules, without a language model.

May enter: rules from a topic that was read to hypotheses, arms and constants. How words are understood is in
`research.topic`; what a design costs and can see is in `research.design`.
"""
