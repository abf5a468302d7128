"""Research: from a topic to a report. The command line is its public surface.

Packages of what happens between a topic and its report; in this folder itself only the entry points, the
doctor and small helpers that several packages need. Records, statistics and the report go to `studies`, what serves or
trains to `swarm`, what runs containers to `sandboxes`.
"""
