"""Nouns of a study as frozen pydantic values."""
