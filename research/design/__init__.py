"""Design compiler."""
