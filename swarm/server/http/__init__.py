"""HTTP: the table of operations, routes, limits and errors. What a route does is done by the packages below.

May enter: what knows of requests, headers, statuses and the documents about them. To add an operation: an entry of
`OPERATIONS` (`operations.py`) and its handler in `control.py` or, if it only reads, in `reading.py`.
"""
