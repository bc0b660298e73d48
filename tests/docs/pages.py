"""The code blocks of README and pages, and the shell script that a page's blocks make together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
#: Pages whose every block is run: what people are told to do.
RUN: Final = (README, DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md")))

#: Languages of blocks that show what something prints: nothing there to run.
SHOWN: Final = ("text", "mermaid")
#: Before a block that cannot be run here: ``<!-- not run: needs Docker -->``.
_NOT_RUN: Final = re.compile(r"<!-- not run: (?P<why>.+) -->\n$")
_BLOCK: Final = re.compile(
    r"(?P<before><!-- [^\n]* -->\n)?^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: At the end of a command that does not end with 0.
_EXITS_WITH: Final = re.compile(r"^(?P<command>.*?)\s+# exits with (?P<code>[0-9]+)$", re.DOTALL)
#: The command, not a module, a folder or what it prints.
_SUREHAND: Final = re.compile(r"(?<![\w./-])surehand (?=[a-z-])")
_IN_BACKGROUND: Final = re.compile(r"[^&]&(\s|$)")
_APPROVAL: Final = re.compile(r"\b[a-z0-9-]+(?:~[a-z0-9-]+)*/[a-z0-9_.-]+/[0-9]+\b")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    title: str
    """The file that the block is."""
    text: str
    not_run: str
    """Why it cannot be run here; empty: it is run."""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        why = _NOT_RUN.match(match["before"] or "")
        line = text.count("\n", 0, match.start("language")) + 1
        title, reason = match["title"] or "", why["why"] if why else ""
        found.append(Block(page, line, match["language"], title, match["text"], reason))
    return found


def script(page: Path, replaced: dict[str, str], quick: str = "") -> str:
    """Return what a reader of the page types, as one script of bash.

    Args:
        page: Its blocks are run in their order, in one shell; blocks with a title are its files.
        replaced: What is typed differently here, by what the page has.
        quick: A function ``quick`` that is called instead of ``surehand``.
    """
    run = _quickly if quick else str
    parts = [quick, run(_PRELUDE)]
    for block in blocks(page):
        if block.not_run or block.language in SHOWN:
            continue
        parts.append(f"echo '--- {page.name}:{block.line}'")
        if block.title:
            end = f"END_OF_{block.line}"
            parts.append(f"mkdir -p \"$(dirname '{block.title}')\"")
            parts.append(f"cat > '{block.title}' <<'{end}'\n{block.text}{end}")
        elif block.language == "bash":
            parts.extend(run(_typed(command, replaced)) for command in _commands(block.text))
    return "\n".join([*parts, "echo '--- the end'", ""])


def _commands(text: str) -> Iterator[str]:
    """Return the commands of a block, each with the lines that it goes on in."""
    command = ""
    for line in text.splitlines():
        command += line
        if line.endswith("\\"):
            command += "\n"
        else:
            yield command
            command = ""


def _typed(command: str, replaced: dict[str, str]) -> str:
    for written, typed in replaced.items():
        command = command.replace(written, typed)
    about = _APPROVAL.search(command)
    if about:  # what people copy from where the call is shown
        command = command.replace('"sha256:..."', f"\"'$(params_hash {about[0]})'\"")
        command = command.replace("sha256:...", f"$(params_hash {about[0]})")
    command = re.sub(r"\b(SA|iv|halt)-\.\.\.", r"$(newest_\1)", command)
    asked = re.match(r"surehand answer (\S+) ([^=\s]+)=", command)
    if asked:  # nobody answers what is not asked yet
        command = f"asked {asked[1]} {asked[2]}\n{command}"
    failing = _EXITS_WITH.match(command)
    return f"exits_with {failing['code']} {failing['command']}" if failing else command


def _quickly(command: str) -> str:
    """Return a command that calls ``quick``, but in the background, where it gets signals."""
    if _IN_BACKGROUND.search(command):
        return command
    return _SUREHAND.sub("quick ", command)


_PRELUDE: Final = r"""
set -eo pipefail
shopt -s expand_aliases
exits_with() {
    local wanted=$1 code=0; shift
    "$@" || code=$?
    [ "$code" = "$wanted" ] || { echo "exit code $code instead of $wanted: $*" >&2; return 1; }
}
# What a reader copies from what is on the screen; the calls come seconds after they are started.
field() {
    python -c 'import json, sys; print(eval(sys.argv[1], {"it": json.load(sys.stdin)}))' "$1"
}
shown() {
    local tries
    for tries in $(seq 60); do
        "${@:2}" --json 2> /dev/null | field "$1" 2> /dev/null && return
    done
    echo "nothing to copy from: ${*:2}" >&2
    return 1
}
params_hash() { shown 'it["params_hash"]' surehand show "$1"; }
asked() {
    local wanted="[one for one in it['result']['waiting_for'] if one['id'] == '$2'][0]"
    shown "$wanted" surehand show "$1"
}
newest_SA() { shown 'it["standing"][-1]["standing_id"]' surehand standing list; }
newest_halt() { shown 'it["halts"][-1]["halt"]["halt_id"]' surehand halts; }
newest_iv() { shown 'it["rows"][-1]["intervention_id"]' surehand interventions; }
"""
