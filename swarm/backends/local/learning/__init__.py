"""Learning: rows laid out for forwards, optimiser steps on a batch, checkpoints.

May enter: what changes the policy's weights. It knows nothing of requests.
"""
