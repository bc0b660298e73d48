"""What is secret by its name is found in the settings of a turn, which is recorded in plain."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.agents.calls import secret_in


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"extra_headers": {"X": "1"}}, "settings.extra_headers"),
        ({"extra_args": {"extra_headers": {"X": "1"}}}, "settings.extra_args.extra_headers"),
        ({"extra_body": [{"Api-Key": "1"}]}, "settings.extra_body.0.Api-Key"),
        ({"extra_headers": None, "extra_body": {"top_k": 1}}, None),
        ({"max_tokens": 5, "logit_bias": {"token": 1}, "prompt_cache_key": "a"}, None),
    ],
)
def test_a_secret_is_found_by_its_name(settings: dict[str, Any], found: str | None) -> None:
    assert secret_in({"settings": settings}) == found


def test_a_token_for_a_server_that_the_provider_calls_is_found() -> None:
    tool = {"tool_config": {"server_url": "https://mcp.example", "authorization": "s3cr3t"}}
    assert secret_in({"settings": {}, "hosted_mcp": tool}) == "hosted_mcp.tool_config.authorization"
