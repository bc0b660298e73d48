"""Standing approvals as their granters give them, and the refunds that use them."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel

from surehand.activities.effects.prepare import covered, prepare_params
from surehand.activities.ledger.approvals import requests
from surehand.activities.ledger.approvals import standing as standing_rows
from surehand.activities.ledger.approvals.standing import Listed, Standing, list_granted
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.client.messages import sign
from surehand.workflows.contracts.approvals import Scope, StandingClaims, StandingGrant, audience
from surehand.workflows.plan.policy import Needs, Requirement
from tests.ledger.people import Place, administration
from tests.ledger.scene import ANYBODY, NOW, RUN, WINDOW, Scene

DAY: Final = timedelta(days=1)


class Refund(BaseModel):
    """Params of the tool of these tests."""

    order: str = "1001"
    amount: Decimal | None = None
    share: float = 0.1
    count: int = 1
    urgent: bool = False
    inner: dict[str, Any] = {}


@tool("payments.refund", effect=WRITE, recovery="human")
async def refund(params: Refund, ctx: ToolContext) -> None:
    """Pay money back."""


def scope(until: timedelta = DAY, **changes: Any) -> Scope:
    """A scope of the tool as it is, for a day."""
    values: dict[str, Any] = {
        "tool": refund.name,
        "version": refund.version,
        "schema_hash": refund.schema_hash,
        "until": int(time.time() + until.total_seconds()),
        **changes,
    }
    return Scope(**values)


def signed(
    tenant: str, granter: str, wanted: Scope, key: Ed25519PrivateKey, **changes: Any
) -> tuple[str, str]:
    """Return the nonce and the signature of a standing approval."""
    now, nonce = int(time.time()), changes.pop("jti", secrets.token_urlsafe(24))
    claims = {"aud": audience(tenant), "sub": granter, "iat": now, "exp": now + 300, **changes}
    return nonce, sign(key, StandingClaims(scope=wanted, jti=nonce, **claims))


def granted(
    scene: Place, granter: str, key: Ed25519PrivateKey | None = None, **limits: Any
) -> Standing:
    """Grant a standing approval, signed if there is a key."""
    wanted = scope(**limits)
    nonce, signature = secrets.token_urlsafe(24), None
    if key is not None:
        nonce, signature = signed(scene.tenant, granter, wanted, key)
    with administration(scene) as tx:
        return standing_rows.grant_standing(tx, grant(granter, wanted, nonce, signature))


def grant(granter: str, wanted: Scope, nonce: str, signature: str | None) -> StandingGrant:
    return StandingGrant(
        granter=granter, scope=wanted, nonce=nonce, signature=signature, reason="as every week"
    )


def revoked(scene: Place, standing: Standing, actor: str = "root") -> None:
    with administration(scene) as tx:
        assert standing_rows.revoke_standing(tx, standing.standing_id, actor)


def ask(
    scene: Scene,
    amount: str | None = "120.00",
    *,
    step_id: str = "refund",
    run_id: str = RUN,
    number: int = 1,
    requirement: Requirement | tuple[Requirement, ...] = ANYBODY,
    with_tool: Tool = refund,
    params: dict[str, Any] | None = None,
    standing: bool = True,
    after: timedelta = NOW,
    expires_in: timedelta = WINDOW,
    **changes: Any,
) -> ClaimRequest:
    """Ask for a refund as a worker does, and return the call that uses the approval."""
    given = {"order": step_id, "amount": amount} if params is None else params
    prepared = prepare_params(with_tool, Hashes(None), given, run_id, step_id)
    call = scene.call(
        run_id=run_id,
        step_id=step_id,
        tool=with_tool.name,
        tool_version=with_tool.version,
        key=f"refund:{run_id}:{step_id}",
        params=prepared.plain,
        params_hash=prepared.params_hash,
        covers=lambda scope: covered(scope, with_tool, prepared.params),
    )
    wanted = requirement if isinstance(requirement, tuple) else (requirement,)
    with scene.tx(after) as tx:
        row = requests.request_approval(
            tx,
            call,
            number=number,
            description="",
            needs=Needs(requirements=wanted, expires_in=expires_in, standing=standing),
            **changes,
        )
    return replace(call, gated=True, approval_id=row["approval_id"])


def listed(scene: Scene, standing: Standing) -> Listed:
    with scene.tx() as tx:
        [found] = [
            one for one in list_granted(tx) if one.standing.standing_id == standing.standing_id
        ]
    return found
