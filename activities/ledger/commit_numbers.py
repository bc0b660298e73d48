"""The number of a commit: its place among all commits, whichever run made them.

Effects are undone by it, last first, over all runs of a tree. It is the database's own: what is
called after another effect was recorded has the greater number.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

#: PostgreSQL's sequence. Two commits at once may get their numbers in either order.
SEQUENCE: Final = "effects_commit_no"


class next_commit_no(FunctionElement[int]):
    """The next number, to be set by an ``UPDATE`` of ``effects``."""

    type = BigInteger()
    inherit_cache = True


@compiles(next_commit_no, "postgresql")
def _on_postgresql(element: next_commit_no, compiler: Any, **how: Any) -> str:
    return f"nextval('{SEQUENCE}')"


@compiles(next_commit_no, "sqlite")
def _on_sqlite(element: next_commit_no, compiler: Any, **how: Any) -> str:
    # A transaction is the only writer.
    newest = "SELECT max(every.commit_no) FROM effects AS every"
    return f"(coalesce(({newest} WHERE every.tenant_id = effects.tenant_id), 0) + 1)"
