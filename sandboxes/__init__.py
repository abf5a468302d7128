"""Sandboxes: where clients and evaluators run. Imports nothing of the other rooms."""

from sandboxes.process import ProcessSandbox
from sandboxes.spec import Exit, ExitReason, Handle, Sandbox, SandboxError, SandboxSpec

__all__ = ["Exit", "ExitReason", "Handle", "ProcessSandbox", "Sandbox", "SandboxError", "SandboxSpec"]
