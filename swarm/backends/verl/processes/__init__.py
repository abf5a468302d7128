"""The processes of a training on Ray: what they inherit, what they print, and how long they are waited for.

May enter: what learners and replicas have in common as processes. It knows neither weights nor requests.
"""
