"""The tiny model: made on the spot from a seed, warm-started on an environment's scripted player.

May enter: what makes it. Once made it is a folder like that of any other model.
"""
