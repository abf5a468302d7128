"""The folder .ajet: studies, servers, models, machine."""
