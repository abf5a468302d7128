"""Keys say who may do what, and nobody can make one up."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import jwt
import pytest

from swarm.errors import Forbidden, InvalidKey
from swarm.server.shared.keys import EPISODE_LIFE_S, Claims, Keys, permitted
from tests.swarm.server.support import Clock


def bearer(key: str) -> str:
    return f"Bearer {key}"


def test_a_key_says_what_it_was_made_for() -> None:
    keys = Keys()
    assert keys.read(keys.role("viewer")) == Claims("role", role="viewer")
    assert keys.read(keys.model("e", 3)) == Claims("model", episode="e", epoch=3)
    assert keys.read(keys.lease("e", 3)) == Claims("lease", episode="e", epoch=3)


def test_a_name_stands_behind_an_episodes_key_alone() -> None:
    keys = Keys("an/admin/token" * 3)
    model = keys.model("e", 3)
    named = [keys.read_header(bearer(f"{model}/{name}")).agent for name in ("solver", "a%2Fb", "a/b", "")]
    assert named == ["solver", "a/b", "a/b", ""]
    assert keys.read_header(bearer(model)).agent == "", "a name is no part of what is remembered of a key"
    assert keys.read_header(bearer("an/admin/token" * 3)).role == "admin"
    for key in (keys.role("admin"), keys.lease("e", 3)):
        with pytest.raises(InvalidKey, match="behind an episode's key alone"):
            keys.read_header(bearer(f"{key}/solver"))
    with pytest.raises(InvalidKey):
        keys.read_header(bearer(f"{model[:-2]}xx/solver"))


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  ", "Basic abc", "Bearer abc", "Bearer a.b.c"])
def test_no_key_and_nonsense_are_refused(header: str | None) -> None:
    with pytest.raises(InvalidKey):
        Keys().read_header(header)


def test_a_key_expires_even_when_it_was_read_before() -> None:
    clock = Clock()
    keys = Keys(clock=clock)
    key = keys.model("e", 1)
    keys.read(key)
    clock.now += EPISODE_LIFE_S + 1
    with pytest.raises(InvalidKey, match="expired"):
        keys.read(key)


def test_a_valid_key_of_the_wrong_kind_is_forbidden_and_says_what_is_needed() -> None:
    keys = Keys()
    with pytest.raises(Forbidden, match="needs a lease key; found a model key"):
        permitted(keys.read(keys.model("e", 1)), uses=("lease",))
    with pytest.raises(Forbidden, match="needs the admin role; found the viewer role"):
        permitted(keys.read(keys.role("viewer")), roles=("admin",))


def test_keys_carry_no_address_and_no_secret() -> None:
    key = Keys().model("e7", 1)
    assert set(jwt.decode(key, options={"verify_signature": False})) == {"use", "ep", "epoch", "exp"}


def test_an_operators_token_is_an_admin() -> None:
    token = "x" * 40
    claims = Keys(token).read_header(bearer(token))
    assert (claims.role, claims.signed) == ("admin", False)
    with pytest.raises(InvalidKey):
        Keys().read_header(bearer(token))


def test_the_token_file_is_the_owners_alone(tmp_path: Path) -> None:
    keys = Keys()
    path = tmp_path / "tokens.json"
    path.write_text("old")
    keys.write_tokens(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {keys.read(token).role for token in json.loads(path.read_text()).values()} == {"admin", "client", "viewer"}
