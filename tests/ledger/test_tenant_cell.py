"""G1: of which cell a tenant is, an administrator says to its ledger, once."""

from __future__ import annotations

import pytest
from sqlalchemy import update
from sqlalchemy.exc import ProgrammingError

from surehand.activities.ledger.core.tables import tenants
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.runs.tenant_cell import add_tenant, cell_of_tenant
from tests.ledger.people import administration
from tests.ledger.scene import Scene


def test_a_tenant_that_has_moved_is_not_added_where_it_was(scene: Scene, other: Scene) -> None:
    for one in (scene, other):
        with administration(one) as tx:
            add_tenant(tx, "a", "olga")
            add_tenant(tx, "a", "olga")
    with administration(scene) as tx:
        tx.connection.execute(
            update(tenants).where(tenants.c.tenant_id == scene.tenant).values(cell="b")
        )

    refused = pytest.raises(PrincipalError, match=f"tenant {scene.tenant} is of cell b")
    with refused, administration(scene) as tx:
        add_tenant(tx, "a", "olga")
    for one, cell in ((scene, "b"), (other, "a")):
        with one.tx() as tx:
            assert cell_of_tenant(tx) == cell


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_worker_says_of_no_tenant_where_it_is(scene: Scene) -> None:
    """SQLite has no roles."""
    with pytest.raises(ProgrammingError, match="permission denied"), scene.tx() as tx:
        add_tenant(tx, "b", "olga")
