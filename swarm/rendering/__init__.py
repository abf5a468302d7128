"""Chat template, ids, tool calls in sampled text."""
