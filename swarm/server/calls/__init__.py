"""A call of the model: its prompt, its sampling plan, its answers, and retries of the same request."""
