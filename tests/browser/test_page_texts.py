"""Texts of strangers are shown so that all of them is seen, and nothing of them acts."""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any, Final, Literal

import pytest
from playwright.async_api import expect

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
#: Of each space of a text that is shown, whether it lies in the box; and of the text, its outline.
_PLACED: Final = """
(() => {
  const pre = document.querySelector("pre"), box = pre.getBoundingClientRect();
  const { outlineStyle, outlineWidth } = getComputedStyle(pre.querySelectorAll("bdi")[1]);
  const text = pre.querySelectorAll("bdi")[1].firstChild;
  const places = [...text.data.matchAll(/ /g)].map(({ index }) => {
    const range = document.createRange();
    range.setStart(text, index);
    range.setEnd(text, index + 1);
    const { left, right, width } = range.getBoundingClientRect();
    return width > 1 && left >= box.left && right <= box.right;
  });
  return [places, outlineStyle, parseFloat(outlineWidth)];
})()
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


async def test_json_is_shown_whole_seen_and_reads_back_as_the_same_value(modules: Modules) -> None:
    value: dict[str, Any] = {
        **{text: [text, {"__proto__": text}] for text in STRANGE},
        "numbers": [0, -1, 4000, 0.1, 1e-7],
        "rest": [None, True, False, [], {}, "", [[]]],
        "9": 1,
    }
    [shown, text, back, names] = await modules.run(
        "page",
        "showJson, jsonText",
        """
        const { canonical, parseExact } = await import("/canonical.js");
        const main = document.querySelector("main");
        const value = parseExact(given);
        showJson(main, value);
        const names = [...main.querySelectorAll("*")].map((one) => one.localName);
        const text = jsonText(value);
        const back = canonical(parseExact(main.textContent)) === canonical(value);
        return [main.textContent, text, back, names];
        """,
        json.dumps(value),
    )
    assert shown == text
    assert json.loads(text) == value and back is True
    assert plain(text.replace("\n", "")) == text.replace("\n", "")
    assert set(names) <= {"bdi"}


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("forced", ["none", "active"])
async def test_no_text_in_json_draws_a_line_that_looks_like_another_param(
    modules: Modules, width: int, forced: Literal["none", "active"]
) -> None:
    page = modules.page
    await page.set_viewport_size({"width": width, "height": 740})
    await page.emulate_media(forced_colors=forced)
    await modules.run(
        "page",
        "showJson",
        """
        const styles = new CSSStyleSheet();
        styles.replaceSync(await (await fetch("/pages.css")).text());
        document.adoptedStyleSheets = [styles];
        const pre = document.createElement("pre");
        document.querySelector("main").replaceChildren(pre);
        showJson(pre, given);
        """,
        {"memo": LINES.replace("\u00a0", " "), "amount": 5000},
    )
    # A space that hangs at the end of a line takes no place: what follows begins a line by itself.
    placed, style, outline = await page.evaluate(_PLACED)
    assert len(placed) == 244 and all(placed)
    # Where lines are as long as somebody has guessed, it is still seen as one text.
    assert style == "solid" and outline >= 1


async def differing(modules: Modules, before: Any, after: Any) -> Any:
    return await modules.run(
        "forms", "differences", "return differences(...given)", [before, after]
    )


async def test_differences_are_named_by_kind_and_place(modules: Modules) -> None:
    before = {"amount": 4000, "note": "x", "lines": [{"sku": "a", "n": 1}, "b", "c"], "a b": 1}
    after = {"amount": "4000", "lines": [{"sku": "a", "n": 2}, "c"], "a b": 1, "to": None}
    assert await differing(modules, before, after) == [
        {"kind": "changed", "path": "amount", "before": "4000", "after": '"4000"'},
        {"kind": "removed", "path": "note", "before": '"x"'},
        {"kind": "changed", "path": "lines[0].n", "before": "1", "after": "2"},
        {"kind": "changed", "path": "lines[1]", "before": '"b"', "after": '"c"'},
        {"kind": "removed", "path": "lines[2]", "before": '"c"'},
        {"kind": "added", "path": "to", "after": "null"},
    ]
    assert await differing(modules, {"a b": 1}, {"a b": 2}) == [
        {"kind": "changed", "path": '["a b"]', "before": "1", "after": "2"}
    ]
    assert await differing(modules, [1, 2], [1, 2, 3]) == [
        {"kind": "added", "path": "[2]", "after": "3"}
    ]
    assert await differing(modules, {}, []) == [
        {"kind": "changed", "path": "", "before": "{}", "after": "[]"}
    ]
    assert await differing(modules, before, dict(reversed(before.items()))) == []


async def test_no_difference_is_passed_over_and_none_is_made_up(modules: Modules) -> None:
    values: list[Any] = [0, "0", None, False, "", [], {}, [0], [[]], {"a": None}, {"a": 0}, [None]]
    found = await modules.run(
        "forms",
        "differences",
        "return given.map((a) => given.map((b) => differences(a, b).length > 0))",
        values,
    )
    many = range(len(values))
    assert found == [[left != right for right in many] for left in many]


async def test_differences_are_shown_in_words_and_text_in_them_is_only_text(
    modules: Modules,
) -> None:
    before = {"<b>": "<script>alert(1)</script>", "to": "a"}
    after = {"to": "\u202eb"}
    await modules.run(
        "forms",
        "differences, showDifferences",
        "showDifferences(differences(...given), document.querySelector('main'))",
        [before, after],
    )
    lines = modules.page.locator("main li")
    await expect(lines.first).to_have_text('removed ["<b>"] "<script>alert(1)</script>"')
    await expect(lines.last).to_have_text('changed to "a" "\\u202eb"')
    await expect(modules.page.locator("main :is(script, b)")).to_have_count(0)
    await expect(lines.last.locator("ins")).to_have_text('"\\u202eb"')

    await modules.run(
        "forms",
        "showDifferences",
        "showDifferences([], document.querySelector('main'))",
    )
    await expect(modules.page.locator("main")).to_have_text("No difference.")
