"""Who asks: applications by keys that are kept as hashes, and their users by pseudonyms.

A user's name is never stored: what is stored is its HMAC under the installation's secret, with the application's name
before it, so that two applications' users of the same name are two users. Without the secret nobody can find out by
guessing whose a record is; with it one can, so these are pseudonyms and no anonymity.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import InvalidRequest

_PREFIX = "ajet-app-"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What a front's folder keeps secret.

    pseudonym: key of the users' pseudonyms. owner: proves to the swarm server whose the front's episodes are.
    admin: key of the front's own administration.
    """

    pseudonym: str
    owner: str
    admin: str

    def user(self, application: str, name: str) -> str:
        """Return a user's pseudonym: 32 hex digits."""
        named = json.dumps([application, name]).encode()
        return hmac.new(self.pseudonym.encode(), named, hashlib.sha256).hexdigest()[:32]


def kept_secrets(folder: Path) -> Secrets:
    """Return the secrets of a folder, made the first time, readable by the owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "secrets.json"
    try:
        return Secrets(**json.loads(path.read_text()))
    except FileNotFoundError:
        made = {name: secrets.token_hex(32) for name in ("pseudonym", "owner", "admin")}
        write_private(path, json.dumps(made))
        return Secrets(**made)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"expected the front's secrets in {path}; found them broken ({type(error).__name__}): put the file back; "
            "without it no pseudonym fits its user"
        ) from None


def new_key() -> str:
    """Return a key for an application: 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    """Return what is stored of a key; a fast hash does, as nobody can guess 256 bits."""
    return hashlib.sha256(key.encode()).hexdigest()


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, all or nothing."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
