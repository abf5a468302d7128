"""Exports: episodes as files that other tools read. Pure functions of episode records."""

from swarm.exports.openenv import training_trace
from swarm.exports.parquet import ParquetExport

__all__ = ["ParquetExport", "training_trace"]
