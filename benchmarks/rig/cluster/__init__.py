"""The backend `verl` with a clock at each of its parts, and what these come to with a large model."""
