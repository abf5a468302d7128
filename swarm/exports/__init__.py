"""Exports: episodes as files that other tools read. Pure functions of episode records.

May enter: a module for each format, from records to what is written. Which episodes are exported, and the streaming,
are in `swarm/server/service/export.py`. To add one: a module here; there its name in `ExportFormat` and `MEDIA` and a
branch of `exported`; its name also in the client's `ExportFormat` (`swarm/client/asynchronous.py`) and in
`swarm/server/http/operations.py`.
"""

from swarm.exports.openenv import TokenReading, training_trace
from swarm.exports.parquet import ParquetExport

__all__ = ["ParquetExport", "TokenReading", "training_trace"]
