"""Planners besides the shipped ones, and scripted endpoints for the shipped one that asks a language model."""
