"""The processes of a training on Ray: what they inherit, what they print, how long they are waited for, and the form in
which weights pass between them.

May enter: what learners and replicas have in common as processes. It knows neither models nor requests.
"""
