"""What only a report of several rounds says: first answers over all of them, the best recipe, the error ledgers.

May enter: what rests on more than one round's state. What one round says of itself is in `studies.report.sections` and
`studies.report.headline`, and stands in its section unchanged.
"""
