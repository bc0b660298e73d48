"""Refunds over 100 take a passkey."""

from __future__ import annotations

from surehand import WRITE, ApprovalPolicy, ApprovalRule, tool
from surehand.examples.shop import tools as shop

cancel_refund = shop.cancel_refund

refund = tool(
    shop.refund.name,
    effect=WRITE,
    timeout=shop.refund.timeout,
    key=shop.refund.key,
    recovery="human",
    compensate=shop.refund.compensate,
    approval=ApprovalPolicy(rules=(ApprovalRule(when="amount > 100", proof="passkey"),)),
    describe=shop.refund.describe,
)(shop.refund.fn)
