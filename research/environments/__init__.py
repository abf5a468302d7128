"""Custom environments of an installation."""
