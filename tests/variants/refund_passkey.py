"""Refunds over 100 take a passkey."""

from __future__ import annotations

from dataclasses import replace

from surehand import ApprovalPolicy, ApprovalRule
from tests.variants import refund_human
from tests.variants.refund_human import cancel_refund as cancel_refund

_PASSKEY = ApprovalPolicy(rules=(ApprovalRule(when="amount > 100", proof="passkey"),))
refund = replace(refund_human.refund, approval=_PASSKEY)
