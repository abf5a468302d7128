"""The sections of a report, one module each: from state and evidence to tables and sentences."""
