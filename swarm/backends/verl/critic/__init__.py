"""A critic beside the policy: a second model on the same ranks, which says what each token is worth.

May enter: what the estimator `gae` needs beyond `learning`, whose learner and ranks are extended here. Every touch of
verl's own names is in `adapter.py`.
"""
