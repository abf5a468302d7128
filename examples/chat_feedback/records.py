"""What the front keeps of users, in one SQLite file that its owner alone can read: no word of any request or answer.

    consents   what each user said, when, and to which version of the text; the newest counts
    episodes   which episodes of the swarm server answered which request of whom, until they are erased there

A user's name is kept as a pseudonym alone: its HMAC under a secret of this file. Who has the file can test a guess.
"""

import hashlib
import hmac
import os
import secrets
import sqlite3
import time

TABLES = """
create table if not exists secrets (name text primary key, value text not null);
create table if not exists consents (user text not null, given integer not null, version text not null, at real);
create table if not exists episodes (id text primary key, user text, reply text, at real, state text not null);
"""  # an episode is `open`, `ended` (it has its reward), or to `erase`
FORGET = "update episodes set state = 'erase', user = null, reply = null"


class Records:
    def __init__(self, path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self.db = sqlite3.connect(path, timeout=1.0)
        self.db.execute("pragma secure_delete = on")  # what is deleted is overwritten
        self.db.execute("pragma locking_mode = exclusive")  # a second front with this file is refused
        self.db.executescript(TABLES)
        with self.db:
            made = [(name, secrets.token_hex(32)) for name in ("owner", "pseudonym")]
            self.db.executemany("insert or ignore into secrets values (?, ?)", made)
            self.db.execute(f"{FORGET} where state = 'open'")  # a front that was killed left them
        kept = dict(self.db.execute("select name, value from secrets"))
        self.owner = kept["owner"]  # proves to the swarm server whose the episodes are
        self.key = kept["pseudonym"].encode()

    def pseudonym(self, name):
        return hmac.new(self.key, name.encode(), hashlib.sha256).hexdigest()[:32]

    def say_consent(self, user, given, version):
        with self.db:
            self.db.execute("insert into consents values (?, ?, ?, ?)", (user, given, version, time.time()))

    def consents(self, user):
        newest = "select given from consents where user = ? order by rowid desc limit 1"
        return self.db.execute(newest, (user,)).fetchone() == (1,)

    def began(self, episodes, user=None, reply=None):
        """Write down what begins, before anything is sampled in it; without a user nothing of it is trained."""
        rows = [(each, user, reply, time.time()) for each in episodes]
        with self.db:
            self.db.executemany("insert into episodes values (?, ?, ?, ?, 'open')", rows)

    def ended(self, episodes):
        """Write down that these have their rewards; what is to be erased by now stays so."""
        ended = "update episodes set state = 'ended' where id = ? and state = 'open'"
        with self.db:
            self.db.executemany(ended, [(each,) for each in episodes])

    def erase(self, episodes):
        """Have these erased, and forget whose they were."""
        with self.db:
            self.db.executemany(f"{FORGET} where id = ?", [(each,) for each in episodes])

    def forget(self, user, *, consents):
        """Have all of a user's episodes erased; `consents`: delete these too."""
        with self.db:
            self.db.execute(f"{FORGET} where user = ?", (user,))
            if consents:
                self.db.execute("delete from consents where user = ?", (user,))

    def to_erase(self):
        return [each for (each,) in self.db.execute("select id from episodes where state = 'erase'")]

    def erased(self, episodes):
        with self.db:
            self.db.executemany("delete from episodes where id = ?", [(each,) for each in episodes])
