"""Event log and the state folded from it."""
