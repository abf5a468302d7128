"""The Docker sandbox: containers that outlive their controller and can harm nothing.

May enter: what finds a container engine, and starts, watches and settles containers on it. What runs inside one is in
`sandboxes.inside`, what it may reach in `sandboxes.gateway`, what its image holds in `sandboxes.images`.
"""
