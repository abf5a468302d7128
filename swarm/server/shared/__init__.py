"""What the whole server reads: its state, keys, folder, clock, events and the gate of generation."""
