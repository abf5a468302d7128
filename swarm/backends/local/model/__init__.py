"""The model that engine and learner share: loading, what fits and can be served, its forwards and its lock.

May enter: what both engine and learner need of the model. It knows neither requests nor updates.
"""
