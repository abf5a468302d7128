"""Rule planner, language-model planner, their tools."""
