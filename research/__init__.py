"""Research: from a topic to a report. The command line is its public surface."""
