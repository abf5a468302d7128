"""Sandboxes: where clients and evaluators run. Imports nothing of the other rooms."""

from sandboxes.docker.container import ContainerHandle, DockerSandbox
from sandboxes.process import ProcessSandbox
from sandboxes.spec import Exit, ExitReason, Handle, Limits, Sandbox, SandboxError, SandboxSpec

__all__ = [
    "ContainerHandle", "DockerSandbox", "Exit", "ExitReason", "Handle", "Limits", "ProcessSandbox", "Sandbox",
    "SandboxError", "SandboxSpec",
]  # fmt: skip
