"""What lies in a client image at /opt/ajet: run inside containers, by any Python from 3.9, with no package.

May enter: modules that run in a container and import the standard library alone. Our side of the same sockets is in
`sandboxes.gateway`.
"""
