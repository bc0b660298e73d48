"""Texts of strangers are shown so that all of them is seen, and nothing of them acts."""

from __future__ import annotations

import json
import random
import struct
import sys
import unicodedata
from typing import Any, Final, Literal, NoReturn

import pytest
from playwright.async_api import expect

from surehand.workflows.canonical_json import NotCanonical, canonical_json, digest, loses_digits
from surehand.workflows.identity import params_hash
from surehand.workflows.plain_text import plain
from tests.browser.static_files import Modules

_SPACES: Final = " " * 120
#: Draws lines that look like params, with quotation marks that are none.
LINES: Final = (
    f"thanks\u02ba,{_SPACES}\u00a0\u00a0\u02baamount\u02ba: 5,{_SPACES}\u02baref\u02ba: 1"
)
#: A digit that is hidden, an amount that is turned around, markup, an escape sequence, and lines.
STRANGE: Final = (
    "DE89 3704\u200b0044",
    "refund \u202e0005\u202c EUR",
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "\x1b[2J\x00\x7f\x9b",
    "line\u2028line\u2029line\r\nline",
    "\ufeff\u2066\u00ad\U000e0041\U0001f600",
    LINES,
    "\\u202e",
)
#: Whether each line of a text that is shown lies behind an edge of its own, and how wide that is.
_EDGED: Final = """
(() => {
  const text = document.querySelector("[data-kind=text]"), { left } = text.getBoundingClientRect();
  const { borderLeftStyle, borderLeftWidth } = getComputedStyle(text);
  const range = document.createRange();
  range.selectNodeContents(text);
  const behind = [...range.getClientRects()].every((line) => line.left > left);
  const json = getComputedStyle(document.querySelector("pre bdi.long"));
  return [behind, borderLeftStyle, parseFloat(borderLeftWidth), json.outlineStyle];
})()
"""
#: Draws a call, and returns what was read back of it.
DRAWN: Final = """
const { canonical, parseExact } = await import("/canonical.js");
const main = document.querySelector("main");
const call = (params) => ({ tool: "t", version: "1", params, answers: [] });
"""


async def test_what_terminals_show_as_an_escape_the_page_does_too(modules: Modules) -> None:
    points = [one for one in range(sys.maxunicode + 1) if not 0xD800 <= one <= 0xDFFF]
    unseen = await modules.run(
        "page",
        "plain",
        """
        const all = Array.from({length: 0x110000}, (_, point) => point);
        return all.filter((point) => (point < 0xd800 || point > 0xdfff) &&
          plain(String.fromCodePoint(point)).startsWith("\\\\u"));
        """,
    )
    ours = {point for point in points if plain(chr(point)) != chr(point)}
    assert ours - set(unseen) == set()
    # The browser may know a newer Unicode: what is new in it, Python has no category for.
    assert {unicodedata.category(chr(point)) for point in set(unseen) - ours} <= {"Cn"}
    assert ours > {0x00, 0x1B, 0x7F, 0xAD, 0x200B, 0x202E, 0x2028, 0x2066, 0xFEFF, 0xE0041}
    assert ours > {0xA0, 0x2003, 0x3000} and 0x20 not in ours
    assert ours > {0x034F, 0x115F, 0x2800, 0x3164, 0xFE0F, 0xFFA0, 0xE0100}

    shown = await modules.run("page", "plain", "return given.map(plain)", STRANGE)
    assert shown == [plain(text) for text in STRANGE]
    assert await modules.run("page", "plain", "return plain('a\\ud800b')") == "a\\ud800b"


async def test_text_is_shown_as_text_with_the_unseen_set_apart(modules: Modules) -> None:
    main = modules.page.locator("main")
    for text in STRANGE:
        found = await modules.run(
            "page",
            "showText",
            """
            const main = document.querySelector("main");
            showText(main, given);
            const names = [...main.querySelectorAll("*")].map((one) => one.localName);
            return [main.textContent, names];
            """,
            text,
        )
        assert found[0] == plain(text)
        assert set(found[1]) <= {"bdi", "span"}
    # Who writes an escape by hand is told apart from what it would hide.
    await expect(main.locator(".unseen")).to_have_count(0)
    await modules.run("page", "showText", "showText(document.querySelector('main'), 'a\\u202eb')")
    await expect(main.locator(".unseen")).to_have_text("\\u202e")


def strange_values() -> dict[str, Any]:
    return {
        **{text: [text, {"__proto__": text}] for text in STRANGE},
        "numbers": [0, -1, 4000, 0.1, 1e-7],
        "rest": [None, True, False, [], {}, "", [[]]],
        "9": 1,
        "amount": "5.00",
        "currency": "EUR",
        "order_id": "2026-11-21",
        "Order Id": "yes",
    }


async def test_json_is_shown_whole_seen_and_reads_back_as_the_same_value(modules: Modules) -> None:
    value = strange_values()
    [shown, text, back, names] = await modules.run(
        "call",
        "jsonNodes",
        f"""{DRAWN}
        const {{ jsonText }} = await import("/page.js");
        const value = parseExact(given);
        main.replaceChildren(...jsonNodes(value));
        const names = [...main.querySelectorAll("*")].map((one) => one.localName);
        const back = canonical(parseExact(main.textContent)) === canonical(value);
        return [main.textContent, jsonText(value), back, names];
        """,
        json.dumps(value),
    )
    assert shown == text
    assert json.loads(text) == value and back is True
    assert plain(text.replace("\n", "")) == text.replace("\n", "")
    assert set(names) <= {"bdi"}


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("forced", ["none", "active"])
async def test_no_text_draws_a_line_that_looks_like_another_field(
    modules: Modules, width: int, forced: Literal["none", "active"]
) -> None:
    page = modules.page
    await page.set_viewport_size({"width": width, "height": 740})
    await page.emulate_media(forced_colors=forced)
    for memo in (LINES.replace("\u00a0", " "), "thanks\nAmount\n5.00"):
        await modules.run(
            "call",
            "drawCall, jsonNodes",
            f"""{DRAWN}
            const link = document.createElement("link");
            Object.assign(link, {{ rel: "stylesheet", href: "/pages.css" }});
            document.head.append(link);
            await new Promise((loaded) => link.addEventListener("load", loaded));
            drawCall(call({{ memo: given, amount: 5000 }}), null, main);
            const pre = document.createElement("pre");
            pre.append(...jsonNodes({{ memo: given.replaceAll("\\n", "  ") }}));
            main.append(pre);
            """,
            memo,
        )
        # Not a colour alone, which forced colours take away.
        assert await page.evaluate(_EDGED) == [True, "solid", 3, "solid"]


async def test_all_of_a_call_is_drawn_each_value_once_and_read_back_as_it_was(
    modules: Modules,
) -> None:
    chance = random.Random(36)
    values = [strange_values(), {"a": list(range(2000))}]
    values += [{name: value(chance) for name in chance.sample(NAMES, 3)} for _ in range(300)]
    wrong = await modules.run(
        "call",
        "drawCall",
        f"""{DRAWN}
        return given.map((text) => {{
          const params = parseExact(text);
          const read = drawCall(call(params), {{ properties: {{ a: {{ title: "B" }} }} }}, main);
          return canonical(read) === canonical(call(params)) ? null : text;
        }}).filter(Boolean);
        """,
        [json.dumps(one) for one in values],
    )
    assert wrong == []


async def test_a_call_that_is_not_drawn_whole_and_once_is_noticed(modules: Modules) -> None:
    params = {"amount": "5.00", "currency": "EUR", "lines": [{"n": 1}, {"n": 2}], "to": "a\u202eb"}
    noticed = await modules.run(
        "call",
        "drawCall, readBack",
        f"""{DRAWN}
        const wanted = canonical(call(given));
        const changes = {{
          gone: (leaf) => leaf.remove(),
          twice: (leaf) => leaf.after(leaf.cloneNode(true)),
          hidden: (leaf) => (leaf.style.display = "none"),
          other: (leaf) => leaf.querySelector("bdi")?.append("0") ?? leaf.append("0"),
        }};
        const missed = [];
        for (const [how, change] of Object.entries(changes)) {{
          drawCall(call(given), null, main);
          const count = main.querySelectorAll("[data-path]").length;
          for (let at = 0; at < count; at += 1) {{
            drawCall(call(given), null, main);
            change(main.querySelectorAll("[data-path]")[at]);
            try {{
              if (canonical({{ answers: [], ...readBack(main) }}) === wanted) missed.push(how);
            }} catch (error) {{
              if (error.name !== "NotExact") throw error;
            }}
          }}
        }}
        return missed;
        """,
        params,
    )
    assert noticed == []


async def test_a_member_keeps_its_name_whatever_its_schema_calls_it(modules: Modules) -> None:
    schema = {"properties": {"fee": {"title": "Amount"}, "order_id": {"title": "Order Id"}}}
    params = {"fee": "5.00", "order_id": "7", "am\u043eunt": "9", "a_b": 1, "A b": 2}
    await modules.run(
        "call", "drawCall", f"{DRAWN} drawCall(call(given[0]), given[1], main)", [params, schema]
    )
    labels = await modules.page.locator("dt").all_inner_texts()
    assert labels == ["Fee Amount", "Order id", "am\u043eunt", "a_b", "A b", "Tool"]


async def differing(modules: Modules, before: Any, after: Any) -> Any:
    return await modules.run("call", "differences", "return differences(...given)", [before, after])


async def test_differences_are_named_by_kind_and_place(modules: Modules) -> None:
    before = {"amount": 4000, "note": "x", "lines": [{"sku": "a", "n": 1}, "b", "c"], "a b": 1}
    after = {"amount": "4000", "lines": [{"sku": "a", "n": 2}, "c"], "a b": 1, "to": None}
    assert await differing(modules, before, after) == [
        {"path": "amount", "before": 4000, "after": "4000"},
        {"path": "note", "before": "x"},
        {"path": "lines[0].n", "before": 1, "after": 2},
        {"path": "lines[1]", "before": "b", "after": "c"},
        {"path": "lines[2]", "before": "c"},
        {"path": "to", "after": None},
    ]
    assert await differing(modules, {"a b": 1}, {"a b": 2}) == [
        {"path": '["a b"]', "before": 1, "after": 2}
    ]
    assert await differing(modules, [1, 2], [1, 2, 3]) == [{"path": "[2]", "after": 3}]
    assert await differing(modules, {}, []) == [{"path": "", "before": {}, "after": []}]
    assert await differing(modules, before, dict(reversed(before.items()))) == []


async def test_no_difference_is_passed_over_and_none_is_made_up(modules: Modules) -> None:
    values: list[Any] = [0, "0", None, False, "", [], {}, [0], [[]], {"a": None}, {"a": 0}, [None]]
    found = await modules.run(
        "call",
        "differences",
        "return given.map((a) => given.map((b) => differences(a, b).length > 0))",
        values,
    )
    many = range(len(values))
    assert found == [[left != right for right in many] for left in many]


async def test_differences_are_words_and_strangers_text_is_only_text(modules: Modules) -> None:
    before = {"<b>": "<script>alert(1)</script>", "to": "pay 5 to ann", "n": 1, "end": "a"}
    after = {"to": "pay 50 to \u202eann", "n": "1", "end": "a\n"}
    await modules.run(
        "call",
        "differences, showDifferences",
        "showDifferences(differences(...given), document.querySelector('main'))",
        [before, after],
    )
    lines = modules.page.locator("main li")
    await expect(lines).to_have_text(
        [
            '["<b>"]: "<script>alert(1)</script>"',
            "to: pay 550 to ann\\u202eann",
            'n: 1 "1"',
            'end: a"\\n"',
        ]
    )
    await expect(modules.page.locator("main script")).to_have_count(0)
    await expect(lines.nth(1).locator("ins")).to_have_text(["50", "\\u202eann"])
    await expect(lines.nth(1).locator("del")).to_have_text(["5", "ann"])

    await modules.run(
        "call", "showDifferences", "showDifferences([], document.querySelector('main'))"
    )
    await expect(modules.page.locator("main")).to_have_text("Nothing is changed.")


async def test_the_words_of_a_difference_make_up_both_texts(modules: Modules) -> None:
    chance = random.Random(5)
    words = ["a", "b", "c", " ", "  ", "\n", "dear"]
    pairs = [
        ["".join(chance.choices(words, k=chance.randrange(9))) for _ in "12"] for _ in range(500)
    ]
    made = await modules.run(
        "call", "wordDifferences", "return given.map((pair) => wordDifferences(...pair))", pairs
    )
    for (before, after), parts in zip(pairs, made, strict=True):
        if before.strip() and after.strip():
            assert "".join(text for how, text in parts if how != "ins") == before
            assert "".join(text for how, text in parts if how != "del") == after


# The page's hashes are the worker's, for any value; what would not be exact is refused.


#: Values for one test.
MANY: Final = 3_000
#: What texts are made of: each way to write a character, and each order of UTF-16 and code points.
CHARACTERS: Final = (
    'ab1 ~"\\/\b\f\n\r\t\x00\x1f\x7f\x80\u00e9\u0416\u05d0\u2028\u2029\u202e\u200b\ud7ff\ue000'
    "\ufb33\uffff\U00010000\U0001f600\U0010ffff"
)
#: Some are in another order by UTF-16 units than by characters.
NAMES: Final = (
    *("", "a", "amount", "__proto__", "constructor", "toJSON", "10", "9"),
    *("\u20ac", "\r", "\ufb33", "\U0001f600", "\uffff", "\U0010ffff"),
)


def text(chance: random.Random) -> str:
    return "".join(chance.choices(CHARACTERS, k=chance.randrange(8)))


def double(bits: str) -> float:
    [value] = struct.unpack(">d", bytes.fromhex(bits))
    assert isinstance(value, float)
    return value


def number(chance: random.Random) -> float:
    """Return a number of any size whose digits the browser keeps."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randrange(-(2**53) + 1, 2**53)
    if kind == 1:
        return chance.randrange(-20_000, 20_000) / 100
    if kind == 2:
        return chance.choice((0, -0.0, 1, -1, 2**53 - 1, 1e-6, 1e-7, 5e-324, 0.1 + 0.2))
    while True:
        value = (
            double(f"{chance.getrandbits(64):016x}") if kind == 3 else chance.uniform(-1e15, 1e15)
        )
        if abs(value) < 2**53:  # no NaN either
            return value


def value(chance: random.Random, level: int = 0) -> Any:
    kind = chance.randrange(6 if level < 4 else 4)
    if kind < 2:
        return number(chance) if kind else text(chance)
    if kind < 4:
        return chance.choice((None, True, False, [], {}, text(chance)))
    if kind == 4:
        return [value(chance, level + 1) for _ in range(chance.randrange(4))]
    return {
        chance.choice((*NAMES, text(chance))): value(chance, level + 1)
        for _ in range(chance.randrange(5))
    }


async def test_canonical_json_and_digests_are_those_of_python(modules: Modules) -> None:
    chance = random.Random(18)
    values = [value(chance) for _ in range(MANY)]
    made = await modules.run(
        "canonical",
        "canonical, digest, parseExact",
        """
        return Promise.all(given.map(async (text) => {
          const value = parseExact(text);
          return [canonical(value), await digest(value)];
        }));
        """,
        [json.dumps(one, ensure_ascii=chance.random() < 0.5) for one in values],
    )
    assert made == [[canonical_json(one).decode(), digest(one)] for one in values]


async def test_params_hashes_are_the_worker_s(modules: Modules) -> None:
    chance = random.Random(8785)
    calls = [
        {
            "tool": text(chance),
            "version": text(chance),
            "params": {name: value(chance) for name in chance.sample(NAMES, 3)},
            **({"answers": [value(chance)] * chance.randrange(3)} if chance.random() < 0.5 else {}),
            **({"salt": chance.choice((None, text(chance)))} if chance.random() < 0.5 else {}),
        }
        for _ in range(500)
    ]
    made = await modules.run(
        "canonical",
        "paramsHash, parseExact",
        "return Promise.all(given.map((text) => paramsHash(parseExact(text))))",
        [json.dumps(call) for call in calls],
    )
    assert made == [params_hash(**call) for call in calls]
    assert len(set(made)) > 400


async def test_no_hash_is_made_of_params_that_have_lost_digits(modules: Modules) -> None:
    for lost in ("9007199254740992", "-9007199254740992", "1e300"):
        for place in ('{"params": {"a": [%s]}}', '{"params": {}, "answers": [%s]}'):
            call = {"tool": "t", "version": "1", **json.loads(place % lost)}
            with pytest.raises(NotCanonical):
                params_hash(**call)
            # The browser's own parser takes it.
            body = "return [await paramsHash(JSON.parse(given))]"
            told = await modules.refused("canonical", "paramsHash", body, json.dumps(call))
            assert "lose digits" in told


PARSED: Final = """
return given.map((text) => {
  try {
    return ["taken", canonical(parseExact(text))];
  } catch (error) {
    if (error.name !== "NotExact") throw error;
    return ["refused", error.message];
  }
});
"""


def strictly(text: str) -> str | None:
    """Return the canonical form of JSON text by Python's parser; ``None``: it has none."""

    def no_constant(_: str) -> NoReturn:
        raise ValueError

    def exact(found: str) -> float:
        if loses_digits(number := float(found)):
            raise ValueError
        return number

    try:
        value = json.loads(text, parse_constant=no_constant, parse_float=exact, parse_int=exact)
        return canonical_json(value).decode()
    except (ValueError, NotCanonical):
        return None


#: Each of them is refused, but for one.
NOT_EXACT: Final = (
    *('{"a":1,}', "{'a':1}", "9007199254740993", "-9007199254740992", "1e400", "[1e300]"),
    *('"\\ud800"', '"\\udc00"', '{"\\ud83d":1}', '"\\ud83d\\ude00"'),
    *('"\t"', '"\\x41"', '"\\u12g4"'),
    *('"', '"\\', '"\\"', "[", "]", "[1,]", "", " ", "\ufeff1", "\u00a01", "1 2", "//1\n1"),
    *("NaN", "Infinity", "-Infinity", "nul", "truefalse", "0x10", "1_0", "01", "+1", ".5", "1."),
    *("-", "1e", "1e+", "--1", "\u0661", "\uff11"),
)


async def test_exact_parsing_takes_what_python_takes_and_nothing_else(modules: Modules) -> None:
    chance = random.Random(4627)
    texts = [*NOT_EXACT]
    for _ in range(MANY):
        written = json.dumps(value(chance), ensure_ascii=chance.random() < 0.5)
        at = chance.randrange(len(written))
        put = chance.choice((*'{}[]:,"\\eu0189.-+ ', "\n", "\\u", "1e9", '"a":'))
        texts.append(written[:at] + put + written[at + chance.randrange(2) :])

    made = await modules.run("canonical", "canonical, parseExact", PARSED, texts)

    taken = [told if result == "taken" else None for result, told in made]
    assert taken == [strictly(one) for one in texts]
    assert [one for one in taken[: len(NOT_EXACT)] if one is not None] == ['"\U0001f600"']
    assert 200 < sum(one is not None for one in taken) < MANY


async def test_half_a_character_is_refused_wherever_it_stands(modules: Modules) -> None:
    for broken in ('"\\ud800"', '["a\\udfffb"]', '{"\\ud800":1}', "'\ud800'.at(0)"):
        told = await modules.refused("canonical", "canonical", f"return [canonical({broken})]")
        assert "half of a character" in told
    for broken in ('"\\ud800"', '["a\\udfffb"]', '{"\\ud800":1}'):
        told = await modules.refused("canonical", "parseExact", "parseExact(given)", broken)
        assert "half of a character" in told


async def test_a_value_is_never_asked_how_it_wants_to_be_written(modules: Modules) -> None:
    made = await modules.run(
        "canonical",
        "canonical, parseExact",
        """return canonical(parseExact('{"toJSON":"x","a":1}'))""",
    )
    assert made == '{"a":1,"toJSON":"x"}'


async def test_a_megabyte_is_hashed_and_a_million_brackets_refused(modules: Modules) -> None:
    large = {"params": ['\\"\u202e' * 100_000, list(range(100_000))]}
    [made, told] = await modules.run(
        "canonical",
        "digest, parseExact",
        """
        try { parseExact("[".repeat(1e6) + "]".repeat(1e6)); } catch (error) {
          return [await digest(parseExact(given)), error.message];
        }
        """,
        json.dumps(large),
    )
    assert made == digest(large)
    assert "nested too deeply" in told
