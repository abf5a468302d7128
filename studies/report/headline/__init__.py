"""The first lines of a report: asked, tested, verdict, in practice, ask next.

May enter: what a reader sees before anything else, written by code from verdicts. Whatever explains it goes to
`studies.report.sections`.
"""
