"""The glossary has the words of file and folder names, but for those that everybody knows."""

from __future__ import annotations

import re
from typing import Final

from tests.docs.pages import DOCS, ROOT

ROOMS: Final = (
    "workflows",
    "activities",
    "surehand/agents",
    "process",
    "client",
    "cli",
    "drill",
    "benchmarks",
)
#: What a programmer knows, or the command line has as a verb.
_KNOWN: Final = """
ai app base benchmark call4agents child children cipher classify cli clock connect connection
context control core dbos demo describe dev doctor engine env environment error exit file history
identity interrupt json key langchain langgraph limit metric migrate migration model module name
one open openai option output own people place plain plugin prepare process profile program
progress public pydantic read rebuild reconcile refund render report resolve row rule run schema
serve server settings show sign signature simulate simulation size start stat state store
surehand table text tool undone usage validation value word wording worker workflow write
"""
KNOWN: Final = frozenset(_KNOWN.split())


def words() -> dict[str, str]:
    """Return the words of names, each with a file that has it."""
    found: dict[str, str] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "versions" in path.parts or path.stem.startswith("__"):
                continue
            for part in path.relative_to(ROOT).with_suffix("").parts:
                for word in part.split("_"):
                    found.setdefault(word, str(path.relative_to(ROOT)))
    return found


def stems(word: str) -> set[str]:
    """Return a word, and what it may be a form of."""
    found = {word, word.removesuffix("s"), word.removesuffix("es")}
    found |= {
        one.removesuffix(end) + more
        for one in tuple(found)
        for end, more in (
            ("ing", ""),
            ("ing", "e"),
            ("ed", ""),
            ("ed", "e"),
            ("ie", "y"),
            ("ies", "y"),
        )
        if one.endswith(end)
    }
    return found


def test_each_word_of_a_file_s_name_is_in_the_glossary_or_known() -> None:
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8").lower()
    listed = " ".join(re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE))
    told = set(re.findall(r"[a-z]+", listed)) | KNOWN

    unknown = {word: file for word, file in words().items() if not stems(word) & told}
    assert unknown == {}, "add these words to docs/glossary.md"


def test_no_known_word_is_kept_that_no_name_has() -> None:
    used = {stem for word in words() for stem in stems(word)}

    assert KNOWN - used == set()
