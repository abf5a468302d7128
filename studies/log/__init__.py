"""The log: events, the pure fold of them into a study's state, and who may write the next one."""
