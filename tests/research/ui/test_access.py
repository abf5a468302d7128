"""Keys are kept as hashes, open what their role may, and end their sessions when they are taken back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from research.errors import BadInput
from research.ui.access import SESSION_S, Access, Person


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(tmp_path / "ui" / "keys.json")


def test_a_key_signs_its_reader_in_and_stands_in_no_file(access: Access, tmp_path: Path) -> None:
    key = access.add("ann", "reviewer")
    session = access.sign_in(key)
    assert session is not None
    assert access.person(session) == Person("ann", "reviewer")
    assert key not in (tmp_path / "ui" / "keys.json").read_text()


def test_the_file_of_keys_is_its_owners(access: Access, tmp_path: Path) -> None:
    access.add("ann", "viewer")
    assert (tmp_path / "ui" / "keys.json").stat().st_mode & 0o077 == 0


def test_a_key_that_is_taken_back_ends_its_sessions(access: Access) -> None:
    session = access.sign_in(access.add("ann", "reviewer"))
    assert session is not None
    access.revoke("ann")
    assert access.person(session) is None


def test_a_session_ends(tmp_path: Path) -> None:
    now = [0.0]
    access = Access(tmp_path / "keys.json", clock=lambda: now[0])
    session = access.sign_in(access.owner_key)
    assert session is not None
    assert access.csrf(session)
    now[0] = SESSION_S
    assert access.person(session) is None


def test_each_session_has_its_own_token(access: Access) -> None:
    first, second = access.sign_in(access.owner_key), access.sign_in(access.owner_key)
    assert first is not None
    assert second is not None
    assert access.csrf(first) != access.csrf(second)


@pytest.mark.parametrize(("name", "role"), [("", "viewer"), ("a b", "viewer"), ("<b>", "viewer"), ("ann", "king")])
def test_what_is_no_name_or_role_is_refused(access: Access, name: str, role: str) -> None:
    with pytest.raises(BadInput, match="expected"):
        access.add(name, role)
    assert access.keys() == ()


def test_a_name_has_one_key(access: Access) -> None:
    access.add("ann", "viewer")
    with pytest.raises(BadInput, match="revoke ann"):
        access.add("ann", "owner")


def test_keys_that_are_handed_out_at_once_are_all_kept(access: Access) -> None:
    names = [f"reader-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        made = list(pool.map(lambda name: access.add(name, "viewer"), names))
    assert all(access.sign_in(key) for key in made)


def test_a_broken_file_is_told_and_lets_nobody_in(access: Access, tmp_path: Path) -> None:
    key = access.add("ann", "viewer")
    (tmp_path / "ui" / "keys.json").write_text("{")
    with pytest.raises(BadInput, match="keys"):
        access.sign_in(key)


@pytest.mark.parametrize(("has", "needs", "may"), [("viewer", "reviewer", False), ("owner", "reviewer", True)])
def test_a_role_may_what_those_below_it_may(has: str, needs: str, may: bool) -> None:
    assert Person("ann", has).may(needs) == may  # type: ignore[arg-type]
