"""Ways to compute a model other than its own modules': the engine's fused forward, attention over trees, recomputation.

May enter: what computes a model, and what checks that it computes the same. It knows neither jobs nor who runs it.
"""
