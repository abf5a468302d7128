"""Research: from a topic to a report. The command line is its public surface.

Records, statistics and the report go to `studies`, what serves or trains to `swarm`, what runs containers to
`sandboxes`.
"""
