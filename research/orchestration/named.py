"""How a Prefect server is reached: one that the environment names, or ours, and what lets in. No password is said.

A server of ours lets in who has the password of its folder, a file that only this user reads: whoever reaches its port
could have it run flows. Prefect's own settings are named as Prefect names them.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from research.files import write_bytes
from research.installation.backends import PREFECT_REMEDY

SERVER: Final = "PREFECT_API_URL"
DATABASE: Final = "PREFECT_API_DATABASE_CONNECTION_URL"
AUTH: Final = "PREFECT_API_AUTH_STRING"
SERVER_AUTH: Final = "PREFECT_SERVER_API_AUTH_STRING"
_ANSWER_S: Final = 2.0
_LONGEST: Final = 300
_RAISED: Final = re.compile(r"^[\w.]*(?:Error|Exception|Refused|Timeout)\b.*", re.MULTILINE)


class PrefectUnavailable(Exception):
    """No Prefect server could be reached or started; the message says why."""


def require_prefect() -> None:
    """Raise PrefectUnavailable where the package is not installed: it is an extra, as vLLM cannot live beside it."""
    if find_spec("prefect") is None:
        raise PrefectUnavailable(f"expected the package prefect; found it not installed; {PREFECT_REMEDY}")


def named_server(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of the server that is named, which answers and lets us in; None where none is named.

    Raises PrefectUnavailable.
    """
    chosen = environment.get(SERVER)
    if not chosen:
        return None
    url = chosen.rstrip("/").removesuffix("/api")
    _require_address(url)
    if not answers(url):
        raise PrefectUnavailable(
            f"expected a Prefect server at {url}, as {SERVER} names it; found none that answers; start it, correct the "
            "address, or unset it to have one of your own"
        )
    _require_entry(url, environment.get(AUTH, ""))
    return url


def answers(url: str) -> bool:
    """Return whether a Prefect server answers at an address."""
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=_ANSWER_S) as reply:
            return bool(reply.status == HTTPStatus.OK)
    except (OSError, ValueError, http.client.HTTPException):  # nobody, no address, or no HTTP
        return False


def password_file(folder: Path) -> Path:
    """Return where the password of a folder's server stands, USER:PASSWORD, as Prefect's pages ask for it."""
    return folder / "password"


def password_of(folder: Path) -> str:
    """Return the password of a folder's server; "" where it has none yet."""
    try:
        return password_file(folder).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def ensure_password(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the password for a folder's server: PREFECT_SERVER_API_AUTH_STRING, else the kept one, else a new one."""
    kept = password_of(folder)
    password = environment.get(SERVER_AUTH) or kept or f"ajet:{secrets.token_urlsafe(24)}"
    if password != kept:
        write_bytes(password_file(folder), f"{password}\n".encode(), mode=0o600)
    return password


def is_open(url: str) -> bool:
    """Return whether a server lets in who says no password, as those did that earlier versions started."""
    try:
        urllib.request.urlopen(_asked(f"{url}/api/admin/version", ""), timeout=_ANSWER_S).close()
    except (OSError, http.client.HTTPException):
        return False
    return True


def why_not_up(log: Path, since: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return why a server that was started does not answer: the last error in its log after so many bytes."""
    with log.open("rb") as file:
        file.seek(since)
        raised = _RAISED.findall(file.read().decode(errors="replace"))
    why = raised[-1][:_LONGEST].strip() if raised else "no answer"
    database = environment.get(DATABASE)
    if database is None:
        return f"found {why}; see its log: {log}"
    return (
        f"found {_unsaid(why, database)}; look whether {_shown(database)} can be reached, which {DATABASE} names, and "
        f"at its log: {log}"
    )


def _require_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise PrefectUnavailable(f"expected an address such as http://HOST:4200/api in {SERVER}; found another text")
    if parts.username is not None:
        raise PrefectUnavailable(
            f"expected no user and password in {SERVER}; found them before {parts.hostname}; take them out, and set "
            f"{AUTH}=USER:PASSWORD instead"
        )


def _require_entry(url: str, auth: str) -> None:
    """Raise PrefectUnavailable where a server refuses us; health may be asked of it by anybody."""
    try:
        urllib.request.urlopen(_asked(f"{url}/api/admin/version", auth), timeout=_ANSWER_S).close()
    except urllib.error.HTTPError as error:
        if error.code not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return  # whoever calls it next says what is wrong
        refused = f"what {AUTH} says" if auth else "whoever names no user"
        raise PrefectUnavailable(
            f"expected the Prefect server at {url} to let us in; found that it refuses {refused} ({error.code}); set "
            f"{AUTH}=USER:PASSWORD as it was started with"
        ) from error
    except (OSError, http.client.HTTPException):
        return  # as above: it answered a moment ago


def _asked(url: str, auth: str) -> urllib.request.Request:
    asked = urllib.request.Request(url)
    if auth:
        asked.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    return asked


def _shown(database: str) -> str:
    try:
        return sa.make_url(database).set(query={}).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return "the database"


def _unsaid(text: str, database: str) -> str:
    """Return a text without the password of a database's URL."""
    found = re.search(r"://[^:/@]*:(.*)@", database)
    secret = found.group(1) if found else ""
    for said in {database, secret, unquote(secret)} - {""}:
        text = text.replace(said, "***")
    return text
