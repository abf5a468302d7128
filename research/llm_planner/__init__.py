"""The planner behind an OpenAI-compatible endpoint: prompts, one request, what its answers are held to."""
