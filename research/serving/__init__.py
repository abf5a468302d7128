"""A machine's worker: studies that were begun, scheduled or resumed in Prefect's pages, or handed over by a command.

May enter: what Prefect's server and worker are told, and the process that the worker starts for a flow run. How a study
is driven is in `research.study`, how it is shown in `research.orchestration`.
"""
