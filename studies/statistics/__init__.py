"""Statistics: pure functions from numbers to estimates, intervals and power. They know nothing of studies' records."""
