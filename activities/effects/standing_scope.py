"""Whether a call lies within the scope of a standing approval, and what it adds to its total. Pure.

In doubt it does not: then people are asked, as if there were no standing approval.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel

from surehand.activities.expressions import RuleBroken, exact_names, holds, problem
from surehand.activities.ledger.steps.entries import Covered, Covers
from surehand.activities.tools.tool import Tool
from surehand.workflows.contracts.standing import Scope
from surehand.workflows.contracts.tools import Effect

#: Digits before and after the point that an amount may have: sums of them stay exact.
MOST_DIGITS: Final = 30


def covering(tool: Tool, params: BaseModel) -> Covers:
    """Return what says of a scope whether it covers a call."""
    return lambda scope: covered(scope, tool, params)


def covered(scope: Scope, tool: Tool, params: BaseModel) -> Covered | None:
    """Return what a call adds to what a scope limits; ``None`` if it lies outside."""
    # A read claims nothing, so that nothing would count its uses, or look again right before it.
    if tool.effect is Effect.READ:
        return None
    if (scope.tool, scope.version, scope.schema_hash) != (
        tool.name, tool.version, tool.schema_hash
    ):  # fmt: skip
        return None
    try:
        if scope.when is not None and not holds(scope.when, params):
            return None
        if scope.total_of is None:
            return Covered()
        amount = _amount(scope.total_of, params)
    except RuleBroken:
        return None
    return None if amount is None else Covered(amount)


def scope_problem(scope: Scope, tool: Tool) -> str | None:
    """Return what is wrong with a scope for calls of its tool, as far as that shows."""
    if tool.effect is Effect.READ:
        return "it only reads, which nothing counts: standing approvals are for effects"
    model = tool.params_model
    if scope.when is not None and (found := problem(scope.when, model, of=())) is not None:
        return found
    if scope.total_of is None:
        return None
    first = scope.total_of.split(".")[0]
    if first not in model.model_fields:
        known = ", ".join(model.model_fields)
        return f"total {scope.total_of!r}: no param {first}; there are {known}"
    return None


def _amount(path: str, params: BaseModel) -> Decimal | None:
    """Return the number at a path of the params, if it is one that can be added up exactly."""
    value: Any = exact_names(params)
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    amount = Decimal(value)
    exponent = amount.as_tuple().exponent
    # Less than nothing would give back what others have used.
    if not isinstance(exponent, int) or amount < 0:
        return None
    return amount if exponent >= -MOST_DIGITS and amount.adjusted() < MOST_DIGITS else None
