"""Principals: what they may do now, who changed it, and changes that meet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from surehand.activities.ledger.core.people_tables import grants, principal_changes, principal_keys
from surehand.activities.ledger.core.people_tables import principals as people
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import (
    Kind,
    Principal,
    PrincipalError,
    changes,
)
from tests.ledger.people import ADMINISTRATOR, SOMEBODYS_KEY, administration, person, revoked
from tests.ledger.scene import Scene

KINDS: tuple[Kind, ...] = ("role", "permission")
KID = "kid-1"
#: As many administrators as ever do the same thing at once, and more.
AT_ONCE = 6

Change = Callable[[Transaction], Any]


def found(scene: Scene, name: str) -> Principal:
    with scene.tx() as tx:
        return (principals.find(tx, [name]))[name]


def noted(scene: Scene, name: str) -> Counter[str]:
    with scene.tx() as tx:
        return Counter(one.change for one in changes(tx, name))


async def at_once(scene: Scene, change: Change) -> Counter[Any]:
    """Make one change many times side by side; returns how often it ended in which way."""

    def attempt() -> Any:
        try:
            with administration(scene) as tx:
                return change(tx)
        except PrincipalError:
            return PrincipalError

    return Counter(await asyncio.gather(*(asyncio.to_thread(attempt) for _ in range(AT_ONCE))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_counts_until_it_is_revoked(scene: Scene, kind: Kind) -> None:
    def held() -> bool:
        ann = found(scene, "ann")
        return "refunds" in (ann.roles if kind == "role" else ann.permissions)

    person(scene, "ann")
    assert not held()
    for _ in range(2):
        with administration(scene) as tx:
            assert principals.grant(tx, "ann", kind, "refunds", ADMINISTRATOR)
            assert not principals.grant(tx, "ann", kind, "refunds", ADMINISTRATOR)
        assert held()
        with administration(scene) as tx:
            assert principals.revoke(tx, "ann", kind, "refunds", ADMINISTRATOR)
            assert not principals.revoke(tx, "ann", kind, "refunds", ADMINISTRATOR)
        assert not held()

    assert noted(scene, "ann") == {"added": 1, f"{kind}_granted": 2, f"{kind}_revoked": 2}


def test_a_role_is_no_permission_of_the_same_name(scene: Scene) -> None:
    person(scene, "ann", "refunds")

    assert found(scene, "ann") == Principal("ann", roles=frozenset({"refunds"}))
    with administration(scene) as tx:
        assert principals.lacks(tx, "ann", ["refunds"]) == "refunds"
        assert not principals.revoke(tx, "ann", "permission", "refunds", ADMINISTRATOR)
    assert (found(scene, "ann")).roles == {"refunds"}


def test_a_permission_that_is_missing_is_named_and_none_when_all_are_there(
    scene: Scene,
) -> None:
    person(scene, "ann", permissions=("mail", "refunds"))

    with scene.tx() as tx:
        assert principals.lacks(tx, "ann", ["refunds", "mail"]) is None
        assert principals.lacks(tx, "ann", ["refunds", "stock", "mail"]) == "stock"
        assert principals.lacks(tx, "nobody", []) is None
        assert principals.lacks(tx, "nobody", ["mail"]) == "mail"
    revoked(scene, "ann", "permission", "mail")
    with scene.tx() as tx:
        assert principals.lacks(tx, "ann", ["refunds", "mail"]) == "mail"


def test_an_unknown_name_is_found_as_somebody_who_may_do_nothing(scene: Scene) -> None:
    person(scene, "ann", "finance", permissions=("mail",))

    with scene.tx() as tx:
        known = principals.find(tx, ["ann", "nobody", "ann "])
        everybody = principals.all_principals(tx)

    assert known["nobody"] == Principal("nobody")
    assert known["ann "] == Principal("ann ")
    assert everybody == [known["ann"]]


async def test_nothing_is_given_to_or_taken_from_an_unknown_name(scene: Scene) -> None:
    refusals: list[Change] = [
        lambda tx: principals.grant(tx, "nobody", "role", "finance", ADMINISTRATOR),
        lambda tx: principals.revoke(tx, "nobody", "role", "finance", ADMINISTRATOR),
        lambda tx: principals.add_key(tx, "nobody", KID, SOMEBODYS_KEY, ADMINISTRATOR),
        lambda tx: principals.revoke_key(tx, "nobody", KID, ADMINISTRATOR),
    ]
    for refused in refusals:
        nobody = pytest.raises(PrincipalError, match="no principal 'nobody'")
        with nobody, administration(scene) as tx:
            refused(tx)

    for table in (people, grants, principal_keys, principal_changes):
        assert scene.rows(table) == []


def test_a_key_has_one_owner_and_once_revoked_never_counts_again(scene: Scene) -> None:
    person(scene, "ann")
    person(scene, "bob")
    with administration(scene) as tx:
        assert principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        assert not principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        with pytest.raises(PrincipalError, match="belongs to 'ann'"):
            principals.add_key(tx, "bob", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        with pytest.raises(PrincipalError, match="'bob' has no key"):
            principals.revoke_key(tx, "bob", KID, ADMINISTRATOR)
    assert (found(scene, "ann")).keys == (KID,)

    with administration(scene) as tx:
        assert principals.revoke_key(tx, "ann", KID, ADMINISTRATOR)
        assert not principals.revoke_key(tx, "ann", KID, ADMINISTRATOR)
        with pytest.raises(PrincipalError, match="was revoked"):
            principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        key = principals.key(tx, KID)

    assert key is not None and key.revoked
    assert (found(scene, "ann")).keys == ()
    assert noted(scene, "ann") == {"added": 1, "key_added": 1, "key_revoked": 1}


def test_another_tenants_people_count_for_nothing(scene: Scene, other: Scene) -> None:
    person(scene, "ann", "finance", permissions=("mail",))
    with administration(scene) as tx:
        principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)

    with other.tx() as tx:
        assert principals.find(tx, ["ann"]) == {"ann": Principal("ann")}
        assert principals.lacks(tx, "ann", ["mail"]) == "mail"
        assert principals.key(tx, KID) is None
        assert principals.all_principals(tx) == []
        assert changes(tx) == changes(tx, "ann") == []
    with pytest.raises(PrincipalError, match="no principal"), administration(other) as tx:
        principals.revoke(tx, "ann", "role", "finance", ADMINISTRATOR)

    # The same name, role and key over there are another person's.
    person(other, "ann", "finance")
    with administration(other) as tx:
        assert principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR)
        assert principals.revoke_key(tx, "ann", KID, ADMINISTRATOR)
        assert principals.revoke(tx, "ann", "role", "finance", ADMINISTRATOR)
    assert found(scene, "ann") == Principal(
        "ann", frozenset({"finance"}), frozenset({"mail"}), (KID,)
    )


async def test_of_many_who_add_one_name_one_does(
    scene: Scene,
) -> None:
    ends = await at_once(scene, lambda tx: principals.add(tx, "ann", ADMINISTRATOR))

    assert ends == {None: 1, PrincipalError: AT_ONCE - 1}
    assert noted(scene, "ann") == {"added": 1}


async def test_of_many_equal_changes_at_once_one_is_made_and_noted(scene: Scene) -> None:
    person(scene, "ann")
    equal: dict[str, Change] = {
        "role_granted": lambda tx: principals.grant(tx, "ann", "role", "x", ADMINISTRATOR),
        "role_revoked": lambda tx: principals.revoke(tx, "ann", "role", "x", ADMINISTRATOR),
        "key_added": lambda tx: principals.add_key(tx, "ann", KID, SOMEBODYS_KEY, ADMINISTRATOR),
        "key_revoked": lambda tx: principals.revoke_key(tx, "ann", KID, ADMINISTRATOR),
    }
    for name, change in equal.items():
        assert await at_once(scene, change) == {True: 1, False: AT_ONCE - 1}, name

    assert noted(scene, "ann") == {"added": 1, **dict.fromkeys(equal, 1)}


async def test_of_many_who_register_one_key_at_once_one_owns_it(scene: Scene) -> None:
    names = [person(scene, f"person-{number}") for number in range(AT_ONCE)]
    ask = iter(names)

    ends = await at_once(
        scene, lambda tx: principals.add_key(tx, next(ask), KID, SOMEBODYS_KEY, ADMINISTRATOR)
    )

    assert ends == {True: 1, PrincipalError: AT_ONCE - 1}
    assert [row["kid"] for row in scene.rows(principal_keys)] == [KID]


# On SQLite a transaction that has begun keeps all others from beginning.
@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_changes_are_told_in_the_order_of_their_locks(
    scene: Scene,
) -> None:
    person(scene, "ann")
    with administration(scene) as late:
        with administration(scene) as tx:
            principals.grant(tx, "ann", "role", "finance", ADMINISTRATOR)
        assert principals.revoke(late, "ann", "role", "finance", ADMINISTRATOR)

    with scene.tx() as tx:
        told = [one.change for one in changes(tx, "ann")]
    assert told == ["added", "role_granted", "role_revoked"]
