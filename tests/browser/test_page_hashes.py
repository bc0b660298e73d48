"""The page's hashes are the worker's, for any value; what would not be exact is refused."""

from __future__ import annotations

import json
import random
import struct
from typing import Any, Final, NoReturn

import pytest

from surehand.workflows.identity import (
    NotCanonical,
    canonical_json,
    digest,
    loses_digits,
    params_hash,
)
from tests.browser.static_files import Modules

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

#: Bits of doubles, and how they are written: RFC 8785, appendix B.
SAMPLES: Final = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
NO_NUMBERS: Final = ("7fffffffffffffff", "7ff0000000000000", "fff0000000000000")


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


async def test_canonical_json_and_digests_are_python_s_for_thousands_of_values(
    modules: Modules,
) -> None:
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


async def test_numbers_are_written_as_rfc_8785_lists_them(modules: Modules) -> None:
    read = """
    const view = new DataView(new ArrayBuffer(8));
    const double = (bits) => (view.setBigUint64(0, BigInt(`0x${bits}`)), view.getFloat64(0));
    """
    safe = [bits for bits in SAMPLES if not loses_digits(double(bits))]
    made = await modules.run(
        "canonical", "canonical", f"{read} return given.map((b) => canonical(double(b)))", safe
    )
    assert made == [SAMPLES[bits] for bits in safe]
    assert [canonical_json(double(bits)).decode() for bits in SAMPLES] == list(SAMPLES.values())
    for bits in {*NO_NUMBERS, *SAMPLES}.difference(safe):
        told = await modules.refused(
            "canonical", "canonical", f"{read} return [canonical(double(given))]", bits
        )
        assert told.startswith("this value has no exact JSON form")


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


async def test_what_is_no_json_has_no_canonical_form(modules: Modules) -> None:
    for no_json in (
        *("undefined", "[,1]", "{a: undefined}", "1n", "NaN", "() => 1", "Symbol()"),
        *("new Date(0)", "new Map()", "new String('a')", "new Uint8Array(1)"),
    ):
        told = await modules.refused("canonical", "canonical", f"return [canonical({no_json})]")
        assert "has no exact JSON form" in told


async def test_a_value_is_never_asked_how_it_wants_to_be_written(modules: Modules) -> None:
    made = await modules.run(
        "canonical",
        "canonical, parseExact",
        """return canonical(parseExact('{"toJSON":"x","a":1}'))""",
    )
    assert made == '{"a":1,"toJSON":"x"}'


async def test_a_megabyte_is_read_and_hashed_and_a_million_brackets_are_refused(
    modules: Modules,
) -> None:
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
