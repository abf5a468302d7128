"""The planner behind an OpenAI-compatible endpoint: prompts, one request, what its answers are held to.

May enter: what a language model is told, how it is asked, and what its answers are checked for. What every planner is
shown is in `research.planner`; how a topic is read by rules is in `research.topic`.
"""
