"""`ajet study list`."""

from research.cli.app import Json, answer, make_table, open_installation, show_progress
from research.shown.listing import read_listing


def list_studies(json: Json = False) -> None:
    """List all studies, newest first; one whose log cannot be read is shown as `corrupt`, with the reason.

    What nothing was added to since the last list is not read again; `ajet study verify` reads all of a study.

    Example:
        ajet study list
    """
    home, log = open_installation()
    with show_progress(json, "reading studies", lambda line: None):
        studies = read_listing(home, log)
    names = ("study", "status", "runs", "verdicts", "created", "topic")
    table = make_table(names, [line.row for line in studies], wraps=names)
    none = 'no study yet; begin one with: ajet research "..."'
    answer(json, [line.summary for line in studies], table if studies else none)
