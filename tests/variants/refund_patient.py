"""The shop's tools, of which a refund may take more than a minute."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta

import httpx

from surehand import ToolContext
from surehand.examples.shop import tools as shop
from surehand.examples.shop.client import DEFAULT_URL
from surehand.examples.shop.params import Refund, RefundParams
from surehand.examples.shop.tools import *  # noqa: F403


async def pay(params: RefundParams, ctx: ToolContext) -> Refund:
    """Pay money back, however long the shop takes."""
    url = os.environ.get("SHOP_URL", DEFAULT_URL)
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = params.model_dump(mode="json")
        response = await client.post("/refunds", json=body, headers=headers)
    return Refund.model_validate(response.raise_for_status().json())


refund = replace(shop.refund, fn=pay, timeout=timedelta(seconds=90))
