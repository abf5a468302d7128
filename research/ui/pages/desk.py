"""Desk: what needs a person first, then all studies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from research.shown.listing import CORRUPT, ListedStudy
from research.ui.site import Page, Site, View, paged
from studies.log.reviews import ReviewState
from studies.proof import DOES_NOT_FOLLOW
from studies.report.wording import format_signed, span

ROWS: Final = 50
MOST_UNREAD: Final = 5


def page(site: Site, view: View) -> Page:
    listed = [each for each in site.listing() if not view.static or each.summary["study"] in view.only]
    counts = site.review_states()
    rows = [_row(each, counts) for each in listed]
    found = [row for row in rows if _fits(row, view)]
    needs = [] if view.static else list(_needs(site, listed, rows))
    values = {
        "needs": needs, "needed": sum(each.get("count", 1) for each in needs), "total": len(rows),
        **paged(view, found, ROWS), "statuses": sorted({row["plain_status"] for row in rows}),
        "verdicts": sorted({name for row in rows for name in row["verdicts"]}),
        "reviews": sorted({row["review_kind"] for row in rows}),
    }  # fmt: skip
    return Page("desk.html.jinja", "Desk", values, study="*")


def _row(each: ListedStudy, counts: Mapping[str, ReviewState]) -> dict[str, Any]:
    told, (_, status, runs, _, began, topic) = each.summary, each.row
    count = counts.get(told["study"])
    kind = "–"
    if count is not None and count.open_count:
        kind = f"{count.open_count} open"
    elif count is not None and any(review.head == told["head"] for review in count.signed.values()):
        kind = "signed"
    elif told["status"] == "concluded" and any(verdict.get("last", True) for verdict in told["verdicts"]):
        kind = "to review"
    return {
        "study": told["study"], "status": status, "plain_status": told["status"], "runs": runs,
        "began": began.replace("T", " "),
        "topic": topic, "verdicts": [verdict["verdict"] for verdict in told["verdicts"]], "review": kind,
        "claims": [_claim(verdict) for verdict in told["verdicts"]],
        "review_kind": kind.partition(" ")[2] or kind,
    }  # fmt: skip


def _claim(verdict: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return name, verdict and estimate of a claim; no number of one that does not follow."""
    known, decided = verdict.get("estimate"), verdict
    if verdict["verdict"] == "equivalent" and verdict["equivalence"]:
        decided = verdict["equivalence"]  # another interval than that of the difference
    said = "" if known is None else f"{format_signed(known)} ({span(decided['low'], decided['high'])})"
    return verdict["hypothesis"], verdict["verdict"], said


def _fits(row: Mapping[str, Any], view: View) -> bool:
    words = view.get("find").lower().split()
    text = f"{row['study']} {row['topic']}".lower()
    return (
        all(word in text for word in words)
        and view.get("status") in ("", row["plain_status"])
        and (not view.get("verdict") or view.get("verdict") in row["verdicts"])
        and view.get("review") in ("", row["review_kind"])
    )


def _needs(site: Site, listed: Sequence[ListedStudy], rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield what waits for a person, what spends money or is wrong before what is to be read."""
    told = [each.summary for each in listed]
    for each in told:
        if (asked := each["asks"]) is not None:
            yield {**_of(each), "kind": "approve", "what": "asks to begin", "said": asked["would"],
                   "digest": asked["digest"], "since": asked["ts"]}  # fmt: skip
    for each in told:
        last = each["planner_asks"][-1] if each["planner_asks"] else None
        if last is not None and not last["noted_since"] and each["status"] not in ("concluded", "stopped"):
            yield {**_of(each), "kind": "answer", "what": "planner asks", "said": last["text"], "since": last["ts"]}
    for each in told:
        if each["status"] == CORRUPT:
            yield {"kind": "wrong", "what": "cannot be read", "said": each["reason"], **_of(each)}
        for verdict in each["verdicts"]:
            if verdict["verdict"] == DOES_NOT_FOLLOW:
                said = f"{verdict['hypothesis']}: {verdict['reason']}"
                yield {"kind": "wrong", "what": "does not follow", "said": said, **_of(each)}
    for each in told:
        if not site.is_driven(each["study"], each["status"]):
            yield {"kind": "resume", "what": "nobody drives it", "said": f"{each['status']}, its controller is gone",
                   **_of(each)}  # fmt: skip
    unread = [(each, row) for each, row in zip(told, rows, strict=True) if row["review_kind"] == "review"]
    for each, row in unread[:MOST_UNREAD]:
        yield {"kind": "review", "what": "to be reviewed", "said": row["topic"], **_of(each), "claims": row["claims"]}
    if (left := len(unread) - MOST_UNREAD) > 0:
        yield {"kind": "more", "what": "to be reviewed", "said": f"{left} more", "count": left, "study": ""}


def _of(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"study": told["study"], "head": told["head"], "since": "", "digest": "", "claims": ()}
