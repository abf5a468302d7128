"""The process sandbox: the project's own commands, detached from their controller. It isolates nothing.

May enter: what starts, finds and ends plain processes of the project's own commands. Untrusted code runs in
`sandboxes.docker`; what both share is in `sandboxes`.
"""
