"""Every error of studies: what was expected, what was found, what to do, in one line."""


class StudiesError(Exception):
    """Base of all errors of studies; itself one that nobody catches apart: no such study, or what cannot be written."""


class StoreError(StudiesError):
    """The event log's database cannot be opened, read or written."""


class HeadMoved(StudiesError):
    """Somebody else appended to a study since it was read; nothing was written: look again, and decide again."""

    def __init__(self, study: str, seq: int) -> None:
        super().__init__(
            f"expected to write event {seq} of study {study}; another process did meanwhile. Nothing was written; "
            "try again"
        )


class LeaseHeld(StudiesError):
    """Another controller drives the study; the message names its process and host."""


class ControllerLeaseLost(StudiesError):
    """This controller must not go on: its lease was taken over, or could not be renewed for so long that it may be."""


class ReportError(StudiesError):
    """A report cannot be built: evidence is missing or is not what was collected."""


class LogCorrupt(StudiesError):
    """An event, or review (`what`), is not what was appended or cannot follow those before; the log stays as it is."""

    def __init__(self, study: str, seq: int, type: str, difference: str, what: str = "event") -> None:
        lost = ", or start a new study and keep this one as it is" if what == "event" else ""
        super().__init__(
            f"{what} {seq} ({type}) of study {study}: {difference}. Nothing was changed; "
            f"restore the event log from a backup{lost}"
        )
        self.study = study
        self.seq = seq
        self.type = type
        self.difference = difference
        self.what = what
