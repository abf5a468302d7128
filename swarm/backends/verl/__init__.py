"""Verl and vLLM on Ray."""
