"""Opaque tokens with which a client that keeps its own history gives a model's thinking back as it was.

A `signature` goes with thinking that is shown and fits that text alone. A `sealed` token carries thinking that
is not shown. Both are the same whenever and wherever they are made, hold nothing but what their text says, and
need no secret: they guard against a mistake (a text edited on the way), not against a client who wants to invent
thinking, which every client of a model may.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib

_SIGNED = "v1.s."
_SEALED = "v1.r."
_DIGEST_BYTES = 24
MOST_CHARACTERS = 4_000_000
"""Thinking longer than this is not unsealed."""
_FOLDED = 8
"""Bytes a packed one may unfold to; what would pack better is not packed. So no body full of short tokens, which any
client may make, unfolds into a server's whole memory."""


def signature(text: str) -> str:
    """Return the token of a text that is shown."""
    return _SIGNED + _encoded(_digest(text))


def sealed(text: str) -> str:
    """Return a token that carries a text."""
    raw = text.encode()
    packed = zlib.compress(raw)
    if len(raw) > _FOLDED * len(packed):
        packed = zlib.compress(raw, 0)
    return _SEALED + _encoded(_digest(text) + packed)


def unsealed(token: str) -> str | None:
    """Return the text a token carries, or None if it was not made by `sealed`."""
    if not token.startswith(_SEALED):
        return None
    try:
        raw = base64.b64decode(token[len(_SEALED) :], altchars=b"-_", validate=True)
        text = _inflated(raw[_DIGEST_BYTES:]).decode()
    except (binascii.Error, zlib.error, ValueError):
        return None
    return text if _digest(text) == raw[:_DIGEST_BYTES] else None


def thinking_of(text: str, token: str) -> str | None:
    """Return what was thought: `text` if `token` signs it, else what `token` carries if no text is shown; or None."""
    if token == signature(text):
        return text
    carried = unsealed(token)
    return carried if text in ("", carried) else None


def _inflated(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    most = min(4 * MOST_CHARACTERS, _FOLDED * len(packed))
    found = unpacker.decompress(packed, most + 1)
    if len(found) > most or not unpacker.eof:
        raise ValueError("too long, or cut")
    return found


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()
