"""Ids as people type them: a run's plain name or its full id, always inside one tenant.

Another tenant's run is "not found", and no server is asked about it.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from surehand.process.exits import NoSuchRun, WrongUse
from surehand.workflows.identity import (
    approval_id,
    run_id_for,
    run_of_approval,
    tenant_of_run,
)

#: Child runs have their step's name behind their parent's.
_FOUND: Final = re.compile(r"[A-Za-z0-9_.:-]{1,120}(~[A-Za-z0-9_-]{1,64}(\[[0-9]+\])?(\.[0-9]+)?)*")
#: Characters; a run's id, a step's and a number have fewer together.
LONGEST_APPROVAL_ID: Final = 400
_ALLOWED: Final = "a run's name has 1 to 120 letters, digits, '_', '.', ':' and '-'"


def new_run_name(plan_name: str) -> str:
    """Return a run name that nobody has used: the plan's name and 8 random hex digits."""
    return f"{plan_name}-{secrets.token_hex(4)}"


def chosen_run_id(tenant: str, text: str) -> str:
    """Return the full id for the name of a run that is to be started.

    Raises:
        WrongUse: If it has not the form of a run id, or names another tenant.
    """
    if "~" in text:
        raise WrongUse(f"run id {text!r}: {_ALLOWED}")
    try:
        return find_run_id(tenant, text)
    except NoSuchRun as error:
        raise WrongUse(
            f"run id {text!r}: {_ALLOWED}, and no tenant but {tenant!r} before it"
        ) from error


def find_run_id(tenant: str, text: str) -> str:
    """Return the full run id for ``refund-1`` or ``acme/refund-1``.

    Raises:
        WrongUse: If it has not the form of a run id.
        NoSuchRun: If it belongs to another tenant.
    """
    name = text.rpartition("/")[2] if text.count("/") == 1 else text
    if not _FOUND.fullmatch(name) or text.startswith("/"):
        raise WrongUse(f"run id {text!r}: {_ALLOWED}")
    if "/" in text and tenant_of_run(text) != tenant:
        raise NoSuchRun(f"run not found: {text}")
    return run_id_for(tenant, name)


def find_approval(tenant: str, text: str) -> tuple[str, str]:
    """Return ``(run id, approval id)`` for ``refund-1/refund/1`` or ``acme/refund-1/refund/1``.

    Raises:
        WrongUse: If it has not the form of an approval id.
        NoSuchRun: If it belongs to another tenant.
    """
    known = len(text) <= LONGEST_APPROVAL_ID and text.isascii() and text.isprintable()
    parts = run_of_approval(text) if known else None
    if parts is None:
        raise WrongUse(
            f"approval id {text[:LONGEST_APPROVAL_ID]!r}: it looks like RUN/STEP/NUMBER, "
            "for example refund-1/refund/1; `pending` lists them"
        )
    run, step = parts
    run_id = find_run_id(tenant, run)
    return run_id, approval_id(run_id, step, int(text.rpartition("/")[2]))
