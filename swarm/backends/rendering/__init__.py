"""Rendering: messages to text by a model's own chat template, text to ids and back, grammars to allowed ids.

May enter: what reads a tokenizer or a template. It knows neither weights nor the history of an episode.
"""
