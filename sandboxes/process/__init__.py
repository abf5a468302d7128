"""The process sandbox: the project's own commands, detached from their controller. It isolates nothing."""
