"""G3: an approver approves a hash; whatever the tool is given, that hash covers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    field_serializer,
    field_validator,
)
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.prepare import PreparedCall, prepare
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, Toolbox, tool
from surehand.workflows.contracts.tools import ToolCall


class Secret(BaseModel):
    iban: SecretStr
    amount: Decimal = Decimal(1)


class Excluded(BaseModel):
    amount: Decimal = Field(exclude=True)


class ExcludedWithDefault(BaseModel):
    amount: Decimal = Field(default=Decimal(1), exclude=True)


class Rounded(BaseModel):
    amount: float

    @field_serializer("amount")
    def _rounded(self, amount: float) -> float:
        return round(amount)


class Inner(BaseModel):
    secret: SecretStr


class Nested(BaseModel):
    inner: list[Inner]


class Restless(BaseModel):
    note: str

    @field_validator("note")
    @classmethod
    def _prefixed(cls, note: str) -> str:
        return f"Re: {note}"


class Broken(BaseModel):
    month: str

    @field_validator("month")
    @classmethod
    def _year_and_month(cls, month: str) -> str:
        return month.split("-")[1]


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")
    amount: Decimal = Field(validation_alias=AliasChoices("amount", "sum"))  # type: ignore[pydantic-alias]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    lines: list[Aliased]
    order_id: str = Field(alias="orderId")


def make(model: type[BaseModel], key: Callable[[Any], Any] | None = None) -> Tool:
    async def refund(params: Any, ctx: ToolContext) -> None:
        """Pay back."""

    refund.__annotations__["params"] = model
    loaded: Tool = tool(
        "payments.refund", effect=WRITE, recovery="human", irreversible=True, key=key
    )(refund)
    return loaded


def prepared(loaded: Tool, params: dict[str, Any]) -> PreparedCall:
    call = ToolCall(
        tenant="default",
        run_id="run-1",
        step_id="refund",
        plan_version=1,
        user="ada",
        tool=loaded.spec(),
        params=params,
    )
    return prepare(Toolbox([loaded]), Hashes(None), call)


def refusal(loaded: Tool, params: dict[str, Any]) -> str:
    with pytest.raises(ApplicationError) as refused:
        prepared(loaded, params)
    assert (refused.value.type, refused.value.non_retryable) == ("InvalidParams", True)
    assert "payments.refund" in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (Secret, {"iban": "DE1"}),
        (Excluded, {"amount": "1000"}),
        (ExcludedWithDefault, {"amount": "1000"}),
        (Rounded, {"amount": 1.4}),
        (Nested, {"inner": [{"secret": "s"}]}),
        (Restless, {"note": "hello"}),
        (Broken, {"month": "2024"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_params_that_the_hash_would_not_cover_are_refused(
    model: type[BaseModel], params: dict[str, Any]
) -> None:
    refusal(make(model), params)


def test_a_refusal_does_not_tell_the_secret() -> None:
    assert "DE-very-secret" not in refusal(make(Secret), {"iban": "DE-very-secret"})


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (ExcludedWithDefault, {}),
        (Rounded, {"amount": 2.0}),
    ],
    ids=["excluded, its default", "rounded, to itself"],
)
def test_params_that_lose_nothing_are_taken(model: type[BaseModel], params: dict[str, Any]) -> None:
    loaded = make(model)
    call = prepared(loaded, params)
    assert loaded.validate(call.plain) == call.params


def test_params_with_aliases_are_what_was_sent_wherever_they_are_read_again() -> None:
    loaded = make(Aliased)
    by_alias = prepared(loaded, {"orderId": "1", "sum": "2.50"})
    by_name = prepared(loaded, {"order_id": "1", "amount": "2.50"})

    assert by_alias.plain == by_name.plain == {"order_id": "1", "amount": "2.50"}
    assert by_alias.params_hash == by_name.params_hash
    # What the ledger stores is what a later attempt, or the undoing, starts from.
    assert prepared(loaded, by_alias.plain).params == by_alias.params


def test_aliases_work_in_models_within_models_that_allow_nothing_else() -> None:
    loaded = make(Strict)
    call = prepared(loaded, {"orderId": "1", "lines": [{"orderId": "2", "sum": "1"}]})

    assert prepared(loaded, call.plain).params_hash == call.params_hash
    refusal(loaded, {"orderId": "1", "lines": [], "colour": "red"})


@pytest.mark.parametrize(
    "key", [None, 1001, Decimal(1), b"refund", ["refund"]], ids=lambda key: type(key).__name__
)
def test_a_key_that_is_no_text_is_refused_and_never_made_into_some(key: Any) -> None:
    message = refusal(make(Aliased, key=lambda params: key), {"orderId": "1", "sum": "1"})
    assert "key(params)" in message
