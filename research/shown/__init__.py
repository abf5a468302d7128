"""What terminal and pages show alike."""
