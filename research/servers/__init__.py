"""The swarm servers that a command means: those of this installation, and those it names by address.

May enter: which server a command talks to, and with which key. Starting a process is in
`research.installation.server_process`; what is said to a server is in `swarm.client`.
"""
