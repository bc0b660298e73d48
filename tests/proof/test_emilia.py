"""The hash that an approval is bound to, made anew by EMILIA's canonicalisation.

``emilia.yaml`` says what was changed. The package comes from the package index when the test runs.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any, Final

import pytest

from surehand.process.files import MAX_DEPTH, BadDocument, parse_json
from surehand.workflows.canonical_json import NotCanonical
from surehand.workflows.identity import params_hash
from tests.proof.packages import Package

pytestmark = pytest.mark.slow

PACKAGE: Final = (
    "emilia-verify==2.9.0 "
    "--hash=sha256:81694d8a968f5b3349efa94190ddf4b5735545d3a88d9796bed6512ea65b9dfe"
)
RANDOM: Final = 1000
#: Prints for each text what its canonical form is, or null if it has none.
THEIRS: Final = """
import json, sys
from emilia_verify import canonicalize, is_canonicalizable
values = [json.loads(text) for text in json.load(sys.stdin)]
print(json.dumps([canonicalize(one) if is_canonicalizable(one) else None for one in values]))
"""
#: Groups of texts that have to mean the same, and nothing else of their kind.
SAME: Final = {
    "texts": [
        ['{"to": "Zo\u00eb"}', r'{"to": "Zo\u00eb"}'],
        ['{"to": "Zoe\u0308"}', r'{"to": "Zoe\u0308"}'],
        ['{"to": "\u2126"}', r'{"to": "\u2126"}'],
        ['{"to": "\u03a9"}', r'{"to": "\u03A9"}'],
        ['{"to": "bank\u202eknab\u202c"}', r'{"to": "bank\u202Eknab\u202C"}'],
        [r'{"to": "\u0001\u001f"}', r'{"to": "\u0001\u001F"}'],
        [r'{"to": "\b\t\n\f\r"}', r'{"to": "\u0008\u0009\u000a\u000C\u000D"}'],
        ['{"to": "\u2028\u2029\x7f\ufeff\u200b"}', r'{"to": "\u2028\u2029\u007f\ufeff\u200b"}'],
        [r'{"to": "a/b\\c\"d"}', r'{"to": "a\/b\u005cc\u0022d"}'],
        ['{"to": "\U0001f3e6"}', r'{"to": "\ud83c\udfe6"}'],
    ],
    "numbers": [
        ['{"n": 7}', '{"n": 7.0}', '{"n": 7e0}', '{"n": 70E-1}'],
        ['{"n": 0}', '{"n": -0}', '{"n": 0.0}', '{"n": -0.0}'],
        ['{"n": 9007199254740991}', '{"n": 9007199254740991.0}'],
        ['{"n": -9007199254740991}'],
        ['{"n": "7"}'],
        ['{"n": [7, null]}'],
        ['{"n": true}'],
    ],
    "names": [
        ['{"to": 1, "from": 2}', '{ "from" : 2,\n\t"to" : 1 }'],
        # Sorted by UTF-16, in which whatever is beyond U+FFFF begins with D8 to DB.
        ['{"\uff21": 1, "\U0001f3e6": 2}', '{"\U0001f3e6": 2, "\uff21": 1}'],
        ['{"b": [{"d": 1, "c": 2}], "a": {}}', '{"a": {}, "b": [{"c": 2, "d": 1}]}'],
        ['{"list": [2, 1]}'],
        ['{"list": [1, 2]}'],
    ],
}
LOSSY: Final = ("9007199254740992", "-9007199254740992", "1e21", "123456789012345678901234567890")
TWICE: Final = ('{"a": 1, "a": 1}', r'{"a": 1, "\u0061": 2}', r'{"b": [{"\u20ac": 1, "€": 2}]}')
HALVES: Final = (
    r'{"a": "\ud83c"}',
    r'{"a": "\udfe6\ud83c"}',
    r'{"a": "\ud83cx"}',
    r'{"\udfe6": 1}',
)


@pytest.fixture(scope="session")
def emilia(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return Package.install(tmp_path_factory.mktemp("emilia"), PACKAGE)


def hash_here(text: str) -> str | None:
    """Return the hash that an approval of such params is bound to; ``None``: they are refused."""
    try:
        return params_hash("payments.refund", "1", parse_json(text))
    except (BadDocument, NotCanonical):
        return None


def hash_there(emilia: Package, texts: list[str]) -> list[str | None]:
    """Return the same hashes, of canonical forms that EMILIA makes."""
    calls = [f'{{"version": "1", "tool": "payments.refund", "params": {one}}}' for one in texts]
    ended = emilia.run("-c", THEIRS, said=json.dumps(calls))
    assert not ended.returncode, ended.stderr
    return [
        one and f"sha256:{hashlib.sha256(one.encode()).hexdigest()}"
        for one in json.loads(ended.stdout)
    ]


@pytest.mark.parametrize("groups", SAME.values(), ids=SAME)
def test_params_have_the_same_hash_here_and_there(emilia: Package, groups: list[list[str]]) -> None:
    texts = [text for group in groups for text in group]
    here = {text: hash_here(text) for text in texts}
    assert list(here.values()) == hash_there(emilia, texts)
    assert None not in here.values()
    assert [len({here[text] for text in group}) for group in groups] == [1] * len(groups)
    assert len(set(here.values())) == len(groups)


def make_value(draw: random.Random, depth: int) -> Any:
    kind = draw.randrange(7 if depth else 5)
    if kind < 2:
        return "".join(
            draw.choice('aZ09 "\\/\n\x01\x7fé\u0308\u2028\uff21\U0001f3e6') for _ in range(kind * 6)
        )
    if kind == 2:
        return draw.choice((None, True, False))
    if kind < 5:
        number = draw.randrange(-(2**53) + 1, 2**53) >> draw.randrange(54)
        return number if kind == 3 else float(number)
    many = [make_value(draw, depth - 1) for _ in range(draw.randrange(5))]
    return many if kind == 5 else {str(make_value(draw, 0)): one for one in many}


def test_random_params_have_the_same_hash_here_and_there(emilia: Package) -> None:
    draw = random.Random(0)
    texts = [
        json.dumps({"p": make_value(draw, 5)}, ensure_ascii=draw.random() < 0.5)
        for _ in range(RANDOM)
    ]
    here = [hash_here(text) for text in texts]
    assert here == hash_there(emilia, texts)
    assert None not in here


def test_numbers_that_lose_digits_are_refused_here_and_there(emilia: Package) -> None:
    texts = [f'{{"n": {number}}}' for number in LOSSY]
    assert [hash_here(text) for text in texts] == hash_there(emilia, texts) == [None] * len(texts)


@pytest.mark.parametrize("text", [*TWICE, *HALVES])
def test_a_name_that_is_there_twice_and_half_a_character_are_refused(text: str) -> None:
    """Their package asks this of whoever reads the text for it."""
    assert hash_here(text) is None


def test_fractions_have_a_hash_here_and_none_there(emilia: Package) -> None:
    texts = ['{"n": 1.5}', '{"n": 0.1}']
    assert hash_there(emilia, texts) == [None, None]
    assert None not in map(hash_here, texts)


def test_nul_and_deep_nesting_are_refused_here_and_not_there(emilia: Package) -> None:
    def nest(levels: int) -> str:
        return '{"p": ' * levels + "1" + "}" * levels

    texts = [r'{"p": "\u0000"}', nest(MAX_DEPTH + 1), nest(64)]
    assert [hash_here(text) for text in texts] == [None] * 3
    assert None not in hash_there(emilia, texts)
    assert [hash_here(nest(MAX_DEPTH))] == hash_there(emilia, [nest(MAX_DEPTH)])
