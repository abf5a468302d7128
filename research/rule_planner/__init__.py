"""The rule planner: from a topic that was read to proposals, by written rules, without a language model."""
