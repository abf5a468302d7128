"""What a study needs next, as pure functions of its state."""
