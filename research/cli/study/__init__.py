"""Commands about studies: plan, run, watch, change, report, verify."""
