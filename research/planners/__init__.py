"""Which planner is asked: chosen by name, and how well each predicted so far."""
