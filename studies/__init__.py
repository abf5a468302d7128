"""Studies remember and judge: the event log, its fold, the statistics of a verdict, and the report."""
