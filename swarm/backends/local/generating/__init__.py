"""Generation: continuous batching over a key-value cache, from a request's prompt to its last token.

May enter: what advances requests by tokens. It reads the policy and never changes it.
"""
