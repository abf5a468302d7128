"""What a front keeps, in one SQLite file of its own that its owner alone can read: no word of any request or answer.

    applications   their names and the hashes of their keys
    consents       what each user (a pseudonym) said, when, and to which version of the text; the newest counts
    replies        which reply was whose, and what became of its group
    feedback       what was said of a reply
    episodes       which episodes of the swarm server are whose, until their tokens are erased there
    counts         requests by what became of them, since the folder was made

A change is on the disk when a method returns. An episode is written down before anything is sampled in it, so that
whatever dies, what the server holds of a user can be found; deleted rows are overwritten in the file.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import StaticPool

from swarm.errors import InvalidRequest, NotFound

FORMAT = 1
_METADATA = sa.MetaData()
_APPLICATIONS = sa.Table(
    "applications",
    _METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("key_hash", sa.Text, nullable=False, unique=True),
    sa.Column("at", sa.Double, nullable=False),
)
_CONSENTS = sa.Table(
    "consents",
    _METADATA,
    sa.Column("place", sa.Integer, primary_key=True),
    sa.Column("user", sa.Text, nullable=False, index=True),
    sa.Column("application", sa.Text, nullable=False),
    sa.Column("given", sa.Boolean, nullable=False),
    sa.Column("version", sa.Text),
    sa.Column("at", sa.Double, nullable=False),
)
_REPLIES = sa.Table(
    "replies",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("user", sa.Text, nullable=False, index=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
_FEEDBACK = sa.Table(
    "feedback",
    _METADATA,
    sa.Column("place", sa.Integer, primary_key=True),
    sa.Column("reply", sa.Text, nullable=False, index=True),
    sa.Column("rating", sa.Text),
    sa.Column("choice", sa.Integer),
    sa.Column("counted", sa.Boolean, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
_EPISODES = sa.Table(
    "episodes",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("user", sa.Text, index=True),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("tried", sa.Double, nullable=False, server_default="0"),
)
_COUNTS = sa.Table(
    "counts",
    _METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("count", sa.Integer, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Consent:
    """What a user said last. `version` names the text that was agreed to; `at` is Unix time in seconds."""

    given: bool
    version: str | None
    at: float


class Records:
    """The file of one front; used on one thread. Only one process writes a folder (`swarm.passive.__main__`)."""

    def __init__(self, path: Path) -> None:
        self.wrong_keys = 0
        """How many are not written down yet: that is done with the next count, and at the end."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)),
            poolclass=StaticPool,
            connect_args={"check_same_thread": False},
        )
        event.listen(self._engine, "connect", _prepare)
        with self._engine.begin() as connection:
            found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
            if found > FORMAT:
                raise InvalidRequest(
                    f"{path} was written by a newer version of ajet: expected format {FORMAT}, found {found}; update "
                    "ajet"
                )
            _METADATA.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version={FORMAT}")

    def close(self) -> None:
        """Let go of the file."""
        with suppress(sa.exc.SQLAlchemyError):  # a full disk
            self.count("wrong_keys", 0)
        self._engine.dispose()

    def keep_application(self, name: str, key_hash: str) -> None:
        """Let an application in by a key; an older key of it is void."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(_APPLICATIONS).where(_APPLICATIONS.c.name == name))
            connection.execute(sa.insert(_APPLICATIONS), {"name": name, "key_hash": key_hash, "at": time.time()})

    def drop_application(self, name: str) -> None:
        """Void an application's key; NotFound where there is none of this name."""
        with self._engine.begin() as connection:
            if not connection.execute(sa.delete(_APPLICATIONS).where(_APPLICATIONS.c.name == name)).rowcount:
                raise NotFound(f"there is no application {name!r}")

    def application(self, key_hash: str) -> str | None:
        """Return whose key this is, or None."""
        query = sa.select(_APPLICATIONS.c.name).where(_APPLICATIONS.c.key_hash == key_hash)
        with self._engine.connect() as connection:
            return connection.execute(query).scalar()

    def applications(self) -> list[str]:
        """Return the applications that have a key."""
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(_APPLICATIONS.c.name).order_by(_APPLICATIONS.c.name)).scalars())

    def say_consent(self, user: str, application: str, given: bool, version: str | None) -> Consent:
        """Write down what a user says from now on."""
        said = Consent(given, version, time.time())
        row = {"user": user, "application": application, "given": given, "version": version, "at": said.at}
        with self._engine.begin() as connection:
            connection.execute(sa.insert(_CONSENTS), row)
        return said

    def consent(self, user: str) -> Consent | None:
        """Return what a user said last, or None."""
        query = sa.select(_CONSENTS).where(_CONSENTS.c.user == user).order_by(_CONSENTS.c.place.desc()).limit(1)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Consent(row.given, row.version, row.at)

    def consents(self, user: str) -> bool:
        """Return whether a user's requests may be trained now."""
        found = self.consent(user)
        return found is not None and found.given

    def began(self, episodes: Iterable[str], user: str | None = None, reply: str | None = None) -> None:
        """Write down that these episodes are open; `user` is None for one that nobody's training comes of."""
        with self._engine.begin() as connection:
            rows = [{"id": episode, "user": user, "state": "open"} for episode in episodes]
            connection.execute(sa.insert(_EPISODES), rows)
            if reply is not None:
                made = {"id": reply, "user": user, "state": "open", "at": time.time()}
                connection.execute(sa.insert(_REPLIES), made)

    def ended(self, episodes: Sequence[str]) -> None:
        """Write down that these episodes have their rewards, unless they are to be erased."""
        with self._engine.begin() as connection:
            here = _EPISODES.c.id.in_(episodes)
            connection.execute(sa.update(_EPISODES).where(here, _EPISODES.c.state == "open").values(state="ended"))

    def settled(self, reply: str, state: str) -> None:
        """Write down what became of a reply's group."""
        with self._engine.begin() as connection:
            connection.execute(sa.update(_REPLIES).where(_REPLIES.c.id == reply).values(state=state))

    def erase(self, episodes: Sequence[str]) -> None:
        """Have these episodes erased; whose they were is forgotten."""
        with self._engine.begin() as connection:
            here = _EPISODES.c.id.in_(episodes)
            connection.execute(sa.update(_EPISODES).where(here).values(state="erase", user=None))

    def erase_open(self) -> None:
        """Have all episodes erased that a former life of the front left open."""
        with self._engine.begin() as connection:
            connection.execute(sa.update(_EPISODES).where(_EPISODES.c.state == "open").values(state="erase", user=None))
            connection.execute(sa.update(_REPLIES).where(_REPLIES.c.state == "open").values(state="front_restarted"))

    def to_erase(self, limit: int) -> list[str]:
        """Return episodes that are to be erased, those first that were not tried for the longest time."""
        query = sa.select(_EPISODES.c.id).where(_EPISODES.c.state == "erase").order_by(_EPISODES.c.tried)
        with self._engine.connect() as connection:
            return list(connection.execute(query.limit(limit)).scalars())

    def number_to_erase(self) -> int:
        """Return how many episodes are to be erased."""
        query = sa.select(sa.func.count()).select_from(_EPISODES).where(_EPISODES.c.state == "erase")
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def tried(self, episodes: Sequence[str], erased: Sequence[str]) -> None:
        """Forget the episodes that are erased; the others were tried now."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(_EPISODES).where(_EPISODES.c.id.in_(erased)))
            connection.execute(sa.update(_EPISODES).where(_EPISODES.c.id.in_(episodes)).values(tried=time.time()))

    def episodes_of(self, user: str) -> list[str]:
        """Return the episodes that the server may hold of a user."""
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(_EPISODES.c.id).where(_EPISODES.c.user == user)).scalars())

    def remaining(self, episodes: Sequence[str]) -> int:
        """Return how many of these are not erased yet."""
        query = sa.select(sa.func.count()).select_from(_EPISODES).where(_EPISODES.c.id.in_(episodes))
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def user_of(self, reply: str) -> str | None:
        """Return whose reply this is; None for one that is not known, or was no training's."""
        with self._engine.connect() as connection:
            return connection.execute(sa.select(_REPLIES.c.user).where(_REPLIES.c.id == reply)).scalar()

    def application_of(self, user: str) -> str | None:
        """Return whose user this is; None for one of whom no consent is kept."""
        query = sa.select(_CONSENTS.c.application).where(_CONSENTS.c.user == user).limit(1)
        with self._engine.connect() as connection:
            return connection.execute(query).scalar()

    def say_feedback(self, reply: str, rating: str | None, choice: int | None, *, counted: bool) -> None:
        """Write down what was said of a reply; `counted`: it makes the rewards."""
        row = {"reply": reply, "rating": rating, "choice": choice, "counted": counted, "at": time.time()}
        with self._engine.begin() as connection:
            connection.execute(sa.insert(_FEEDBACK), row)

    def held(self, user: str) -> dict[str, Any]:
        """Return all that is kept of a user, as JSON."""
        with self._engine.connect() as connection:
            consents = connection.execute(sa.select(_CONSENTS).where(_CONSENTS.c.user == user)).all()
            replies = connection.execute(sa.select(_REPLIES).where(_REPLIES.c.user == user)).all()
            said = connection.execute(sa.select(_FEEDBACK).where(_FEEDBACK.c.reply.in_(_replies_of(user)))).all()
            episodes = connection.execute(sa.select(_EPISODES).where(_EPISODES.c.user == user)).all()
        return {
            "consents": [{"given": row.given, "version": row.version, "at": row.at} for row in consents],
            "replies": [{"id": row.id, "state": row.state, "at": row.at} for row in replies],
            "feedback": [
                {"reply": row.reply, "rating": row.rating, "choice": row.choice, "counted": row.counted, "at": row.at}
                for row in said
            ],
            "episodes": [{"id": row.id, "state": row.state} for row in episodes],
        }

    def forget(self, user: str, what: Literal["all", "replies"] = "all") -> None:
        """Delete what is kept of a user, or of their replies alone; their episodes are to be erased."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(_FEEDBACK).where(_FEEDBACK.c.reply.in_(_replies_of(user))))
            connection.execute(sa.delete(_REPLIES).where(_REPLIES.c.user == user))
            connection.execute(sa.update(_EPISODES).where(_EPISODES.c.user == user).values(state="erase", user=None))
            if what == "all":
                connection.execute(sa.delete(_CONSENTS).where(_CONSENTS.c.user == user))

    def count(self, name: str, by: int = 1) -> None:
        """Count something."""
        told = self.wrong_keys
        counted = Counter({name: by})
        counted["wrong_keys"] += told
        with self._engine.begin() as connection:
            for each, more in (+counted).items():
                added = sa.update(_COUNTS).where(_COUNTS.c.name == each).values(count=_COUNTS.c.count + more)
                if not connection.execute(added).rowcount:
                    connection.execute(sa.insert(_COUNTS), {"name": each, "count": more})
        self.wrong_keys -= told

    def counts(self) -> Mapping[str, int]:
        """Return what was counted."""
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_COUNTS).order_by(_COUNTS.c.name)).mappings()
            written = {str(row["name"]): int(row["count"]) for row in rows}
        return dict(+Counter(written) + Counter(wrong_keys=self.wrong_keys))


def _replies_of(user: str) -> sa.Select[Any]:
    return sa.select(_REPLIES.c.id).where(_REPLIES.c.user == user)


def _prepare(connection: Any, _: object) -> None:
    for pragma in ("journal_mode=TRUNCATE", "synchronous=FULL", "secure_delete=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")
