"""A pool of type docker: each sitting in a container of the user's engine, with this machine's ids and network.

May enter: what such a container is given and how it is seen to fit, its beginning and its end. Which pool a worker
serves is decided in `research/serving/pools.py`.
"""
