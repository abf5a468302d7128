"""The fake backend: scripted answers and no learning, for tests of the server without torch.

May enter: what stands in for an engine, a learner and a renderer, without a model. What one test alone needs belongs in
`tests`.
"""
