"""The loop that drives one study."""
