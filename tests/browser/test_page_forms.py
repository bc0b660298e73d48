"""Flat forms made from schemas: what nobody touches comes back, and numbers stay exact."""

from __future__ import annotations

import json
import random
import re
from typing import Annotated, Any, Final, Literal

import pytest
from playwright.async_api import Locator, Page, expect
from pydantic import BaseModel, Field

from surehand.activities.tools.toolbox import load_toolbox
from tests.browser.accessibility import violations
from tests.browser.static_files import Modules
from tests.browser.test_page_texts import value as any_value
from tests.unit.values import same_json

TOOLBOX: Final = load_toolbox(["surehand.examples.shop.tools"])
LINES: Final = [{"sku": "a", "quantity": 2}, {"sku": "b", "quantity": 4000}]
#: Params of each tool of the shop, as its model writes them.
PARAMS: Final[dict[str, dict[str, Any]]] = {
    "inventory.restock": {"order_id": "order-7", "lines": LINES},
    "inventory.undo_restock": {"restock_id": "restock-1"},
    "mail.send": {
        "order_id": "order-7",
        "kind": "refund_notice",
        "to": "ann@example.com",
        "subject": "Your refund",
        "body": "Dear Ann,\n\n  120.00 EUR are on their way.\n",
    },
    "orders.read": {"order_id": "order-7"},
    "payments.cancel_refund": {"refund_id": "refund-1", "order_id": "order-7"},
    "payments.refund": {
        "order_id": "order-7",
        "amount": "120.00",
        "currency": "EUR",
        "reason": "returned",
    },
    "refunds.calculate": {"order_id": "order-7", "paid": "120.00"},
    "tickets.close": {"ticket_id": "ticket-1"},
}


class Flat(BaseModel):
    """All that has a field of its own."""

    amount: Annotated[int, Field(gt=0, description="in <b>cents</b>")]
    rate: float
    urgent: bool
    currency: Literal["EUR", "USD"]
    note: str | None
    limit: int | None = None
    often: bool = False


FLAT: Final[dict[str, Any]] = {
    "amount": 4000,
    "rate": 0.1,
    "urgent": False,
    "currency": "EUR",
    "note": None,
    "limit": 7,
}
MADE: Final = """
const { parseExact, canonical } = await import("/canonical.js");
globalThis.form = makeForm(...parseExact(given), document.querySelector("main"));
return canonical(form.value());
"""


async def make(modules: Modules, schema: Any, value: Any) -> Any:
    """Make a form, and return its value."""
    return json.loads(await modules.run("forms", "makeForm", MADE, json.dumps([schema, value])))


async def read(page: Page) -> Any:
    """Return the form's value as the JSON text that would be sent."""
    return await page.evaluate("JSON.stringify(form.value())")


def field(modules: Modules, name: str) -> Locator:
    label = name[:1].upper() + name[1:].replace("_", " ")
    return modules.page.get_by_label(label, exact=True)


def flat() -> dict[str, Any]:
    return Flat.model_json_schema()


def test_each_tool_of_the_shop_has_an_example_here() -> None:
    assert sorted(PARAMS) == TOOLBOX.names()


async def test_params_that_nobody_touches_come_back_as_they_were(modules: Modules) -> None:
    for name, params in PARAMS.items():
        tool = TOOLBOX.get(name)
        assert tool is not None
        assert tool.validate(params).model_dump(mode="json") == params
        assert await make(modules, tool.params_model.model_json_schema(), params) == params
        if all(isinstance(one, str) for one in params.values()):
            for member, one in params.items():
                assert await field(modules, member).input_value() == one
        else:  # not flat: all of it is JSON
            whole = field(modules, "Params as JSON")
            assert json.loads(await whole.input_value()) == params


async def test_an_amount_of_4000_that_becomes_50_stays_an_integer(modules: Modules) -> None:
    assert await make(modules, flat(), FLAT) == FLAT
    amount = field(modules, "amount")
    await expect(amount).to_have_value("4000")
    await amount.fill("50")
    text = await read(modules.page)
    assert '"amount":50,' in text
    assert json.loads(text) == {**FLAT, "amount": 50}
    assert Flat.model_validate_json(text, strict=True).amount == 50


async def test_a_decimal_stays_the_text_that_it_is(modules: Modules) -> None:
    tool = TOOLBOX.get("payments.refund")
    assert tool is not None
    params = PARAMS["payments.refund"]
    await make(modules, tool.params_model.model_json_schema(), params)
    await field(modules, "amount").fill("50.00")
    assert json.loads(await read(modules.page)) == {**params, "amount": "50.00"}


WHOLE: Final = "Write a whole number, such as 12."
NUMBER: Final = "Write a number, such as 12 or 12.5."
#: What is typed into a field, and what is said of it.
WRONG: Final = {
    "amount": {
        **dict.fromkeys(("50.0", "5e1", "1,000", "050", "\u0665\u0660", "+5"), WHOLE),
        "9007199254740993": "lose digits",
        "": "This is needed.",
    },
    "rate": {**dict.fromkeys(("0,5", ".5", "NaN", "1 000"), NUMBER), "1-1": "this is not JSON"},
}


@pytest.mark.parametrize("name", sorted(WRONG))
async def test_a_wrong_field_is_named_and_nothing_given_out(modules: Modules, name: str) -> None:
    await make(modules, flat(), FLAT)
    control = field(modules, name)
    right = await control.input_value()
    for typed, told in WRONG[name].items():
        await control.fill(typed)
        await control.press("Tab")
        await expect(control).to_have_attribute("aria-invalid", "true")
        await expect(control).to_have_accessible_description(re.compile(re.escape(told)))
        assert await modules.page.evaluate("form.isWrong()") is True
        refused = await modules.refused("forms", "makeForm", "return [form.value()]")
        assert refused.startswith(f"{name.capitalize()}: ") and told in refused
        await control.fill(right)
        await control.press("Tab")
        await expect(control).to_have_attribute("aria-invalid", "false")
    assert json.loads(await read(modules.page)) == FLAT


async def test_what_may_be_left_out_is_left_out_once_it_is_empty(modules: Modules) -> None:
    await make(modules, flat(), FLAT)
    await field(modules, "limit").fill("")
    await field(modules, "often").select_option("yes")
    rest = {name: one for name, one in FLAT.items() if name != "limit"}
    assert json.loads(await read(modules.page)) == {**rest, "often": True}
    await field(modules, "often").select_option("left out")
    assert json.loads(await read(modules.page)) == rest
    await field(modules, "note").fill("x")
    assert json.loads(await read(modules.page)) == {**rest, "note": "x"}


async def test_a_form_that_begins_with_nothing_asks_for_what_is_needed(modules: Modules) -> None:
    schema = {
        "type": "object",
        "properties": {
            "why": {"type": "string"},
            "kind": {"enum": ["a", "b"]},
            "many": {"type": ["integer", "null"]},
            "price": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        },
        "required": ["why", "kind"],
    }
    body = "globalThis.form = makeForm(given, undefined, document.querySelector('main'))"
    await modules.run("forms", "makeForm", body, schema)
    told = await modules.refused("forms", "makeForm", "return [form.value()]")
    assert told == "Kind: Choose one."
    await field(modules, "kind").select_option("b")
    assert json.loads(await read(modules.page)) == {"why": "", "kind": "b"}
    await field(modules, "many").fill("7")
    await field(modules, "price").fill("0.10")
    given = {"why": "", "kind": "b", "many": 7, "price": "0.10"}
    assert json.loads(await read(modules.page)) == given


async def test_what_is_not_flat_is_json_that_has_to_be_exact(modules: Modules) -> None:
    params = PARAMS["inventory.restock"]
    assert await make(modules, {"type": "object"}, params) == params
    whole = field(modules, "Params as JSON")
    for typed, told in {"{": "this is not JSON", '{"a":1e300}': "lose digits"}.items():
        await whole.fill(typed)
        assert told in await modules.refused("forms", "makeForm", "return [form.value()]")
    await whole.fill('{"note": null}')
    assert json.loads(await read(modules.page)) == {"note": None}


async def test_a_plain_question_has_a_text_box_and_choices_are_buttons(modules: Modules) -> None:
    for schema in ({}, {"type": "string"}):
        body = "globalThis.form = makeForm(given, undefined, document.querySelector('main'), 'Why')"
        await modules.run("forms", "makeForm", body, schema)
        await field(modules, "Why").fill("it came back")
        assert json.loads(await read(modules.page)) == "it came back"
    schemas: list[Any] = [
        {"enum": ["a", 1]},
        {"type": "boolean"},
        {"anyOf": [{"enum": ["accept", "reject"]}, {"type": "object"}]},
        {"type": "integer"},
        {"enum": [*range(7)]},
    ]
    offered = await modules.run(
        "forms", "choicesOf", "return given.map((one) => choicesOf(one) ?? null)", schemas
    )
    assert offered == [["a", 1], [True, False], ["accept", "reject"], None, None]


async def test_each_control_has_a_name_and_axe_core_finds_nothing_wrong(modules: Modules) -> None:
    await make(modules, flat(), FLAT)
    unstyled = "target-size"  # how large a button is, a style sheet says
    assert await violations(modules.page, unstyled) == []
    await field(modules, "amount").fill("")
    assert await modules.page.evaluate("form.isWrong()") is True
    assert await violations(modules.page, unstyled) == []
    # It looks at all: a control without a name is found.
    await modules.page.evaluate("document.querySelector('main label').remove()")
    assert [one.split(":")[0] for one in await violations(modules.page, unstyled)] == ["label"]


async def test_names_descriptions_and_values_of_strangers_are_only_text(modules: Modules) -> None:
    name = "<img src=x onerror=alert(1)>\u202e"
    schema = {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": "<b>\u200b</b>"},
            "of": {"enum": ["<i>", "\u202e"], "title": "<u>"},
        },
    }
    value = {name: "</textarea><script>alert(1)</script>", "of": "<i>"}
    assert await make(modules, schema, value) == value
    main = modules.page.locator("main")
    await expect(main.locator(":is(script, img, b, i, u)")).to_have_count(0)
    await expect(main).to_contain_text("<img src=x onerror=alert(1)>\\u202e")
    await expect(main).to_contain_text("<b>\\u200b</b>")


async def test_text_that_would_not_be_seen_is_edited_as_json_and_kept(modules: Modules) -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
    for strange in ("a\u202eb", "a\r\nb", "a\tb", "\x00", "\u200b", "\ufeff", "\u2028"):
        assert await make(modules, schema, {"to": strange}) == {"to": strange}
        shown = await field(modules, "Params as JSON").input_value()
        assert shown.isascii() and json.loads(shown) == {"to": strange}


def _schema(chance: random.Random, level: int = 0) -> Any:
    """Return any schema, of those that are understood and of those that are not."""
    kind = chance.randrange(12 if level < 3 else 6)
    if kind < 6:
        scalar = ["string", "integer", "number", "boolean", "null", "object"][kind]
        return {"type": scalar, "title": "T"}
    if kind == 6:
        unknown = ({"type": "unknown"}, {"$ref": "#/$defs/none"}, {"$ref": "#/$defs/loop"})
        return chance.choice((True, False, {}, 7, *unknown))
    if kind == 7:
        return {"type": ["string", "null", "integer"]}
    if kind == 8:
        return {"enum": [any_value(chance) for _ in range(2)]}
    if kind == 9:
        return {"anyOf": [_schema(chance, level + 1) for _ in range(chance.randrange(4))]}
    if kind == 10:
        return {"type": "array", "items": _schema(chance, level + 1)}
    names = ("a", "amount", "__proto__", "9", "toJSON")
    return {
        "type": "object",
        "properties": {name: _schema(chance, level + 1) for name in chance.sample(names, 3)},
        "required": chance.sample(names, 1),
        "additionalProperties": chance.choice((True, False, {"type": "string"})),
        "$defs": {"loop": {"$ref": "#/$defs/loop"}},
    }


async def test_any_value_comes_back_through_any_schema_unchanged(modules: Modules) -> None:
    chance = random.Random(4000)
    pairs = [[_schema(chance), any_value(chance)] for _ in range(1500)]
    # Values that fit, too, or would be left out if they were filled in like that.
    pairs += [[_schema(chance), {"a": one, "9": one}] for one in ("", 0, False, None, "a", [], {})]
    made = await modules.run(
        "forms",
        "makeForm",
        """
        const { parseExact } = await import("/canonical.js");
        return given.map((pair) => {
          const form = makeForm(...parseExact(pair), document.querySelector("main"));
          return form.isWrong() ? ["wrong"] : JSON.stringify(form.value());
        });
        """,
        [json.dumps(pair) for pair in pairs],
    )
    changed = [
        (pair, one)
        for pair, one in zip(pairs, made, strict=True)
        if isinstance(one, list) or not same_json(json.loads(one), pair[1])
    ]
    assert changed == []
