"""Files: written whole or not at all, to outlive a power cut; YAML read without surprises.

A plan's params end in effects, so a value must be what it looks like: numbers, booleans and null
are read as JSON writes them, everything else is text. ``2024-05-01``, ``12:30``, ``0123``, ``no``
and ``1_000`` stay as they are written; YAML 1.1 would make a date, 750, 83, false and 1000.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any, Final

import yaml

from surehand.process.exits import WrongUse
from surehand.workflows.canonical_json import LOST_DIGITS, loses_digits

#: Permissions of group and others.
FOR_OTHERS: Final = 0o077


def replace_whole(file: Path, text: str, *, mode: int | None = None) -> None:
    """Write a file: whoever reads it meanwhile finds all of it, old or new.

    Without a mode, whoever may read it already still may.
    """
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    if mode is None and file.exists():
        mode = stat.S_IMODE(file.stat().st_mode)
    created = 0o666 if mode is None else 0o600
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, created)
    try:
        with os.fdopen(descriptor, "wb") as written:
            if mode is not None:
                os.fchmod(descriptor, mode)
            written.write(text.encode())
            written.flush()
            os.fsync(descriptor)
        os.replace(fresh, file)
        to_disk(file.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def read_private(file: Path, what: str) -> str:
    """Return the text of a file with secrets; WrongUse: others can read it, or nobody can.

    ``what``: how the file is named to people.
    """
    try:
        with file.open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if os.name == "posix" and stat.S_IMODE(mode) & FOR_OTHERS:
                raise WrongUse(f"{what} can be read by others: chmod 600 {file}")
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise WrongUse(f"{what} cannot be read: {reason}") from error


def stamp_of(file: Path) -> tuple[int, ...]:
    """Return what differs once a file has changed."""
    found = os.stat(file)
    return found.st_mtime_ns, found.st_ino, found.st_size


def to_disk(*places: Path) -> None:
    """See to it that files, and what folders list, outlive a power cut."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


#: Values in a document, aliases expanded: far above any plan, far below what a few nested YAML
#: aliases can blow up to.
MAX_VALUES: Final = 100_000
#: Deeper than any params, and less than Python's recursion limit.
MAX_DEPTH: Final = 60

#: What JSON can escape, but neither UTF-8 nor PostgreSQL can hold.
_UNSTORABLE: Final = re.compile("[\\x00\\ud800-\\udfff]")

_INT: Final = r"-?(?:0|[1-9][0-9]*)"
_FLOAT: Final = rf"{_INT}(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
#: What is a number, and not a text that begins with a digit.
NUMBER: Final = re.compile(f"{_INT}|{_FLOAT}")

_MERGE: Final = "tag:yaml.org,2002:merge"
_TEXT: Final = "tag:yaml.org,2002:str"
_PLAIN: Final = {
    "tag:yaml.org,2002:null": (r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", ["t", "T", "f", "F"]),
    "tag:yaml.org,2002:int": (_INT, list("-0123456789")),
    "tag:yaml.org,2002:float": (_FLOAT, list("-0123456789")),
    _MERGE: (r"<<", ["<"]),
}


class BadDocument(Exception):
    """A document cannot be read; ``where`` is the place in it."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class _Loader(yaml.SafeLoader):
    """SafeLoader with JSON's scalars and text keys only, no tags, and no key written twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    _merged = 0
    """Pairs that merges have copied so far."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag not in (None, _TEXT):
            raise yaml.MarkedYAMLError(
                problem=f"the tag {tag} is not taken: only !!str is", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for part in parts:
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    # Before they are copied: merges of merges double at each level.
                    self._merged += len(part.value)
                if self._merged > MAX_VALUES:
                    raise yaml.MarkedYAMLError(
                        problem=f"merges (<<) come to more than {MAX_VALUES:,} values",
                        problem_mark=key.start_mark,
                    )
        super().flatten_mapping(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
                raise yaml.MarkedYAMLError(
                    problem="a key must be text; write it in quotes", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} is written twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return node


for _tag, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)


def read_document(path: Path) -> Any:
    """Return the document in a ``.json`` file, or in any other file as YAML."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadDocument("file", error.strerror or "cannot be read") from error
    except UnicodeDecodeError as error:
        raise BadDocument(f"byte {error.start}", "the file is not UTF-8 text") from error
    return parse_json(text) if path.suffix.lower() == ".json" else parse_yaml(text)


def parse_yaml(text: str) -> Any:
    try:
        return _require_portable(yaml.load(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        raise BadDocument(where, error.problem or "is not YAML") from error
    except yaml.reader.ReaderError as error:
        raise BadDocument(f"character {error.position}", "is not allowed in YAML") from error
    except RecursionError as error:
        raise BadDocument("file", "is nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise BadDocument("file", str(error)) from error


def parse_closed(text: str) -> Any:
    """Return a value that is written in quotes or brackets, with nothing behind them."""
    value = parse_yaml(text)
    node = yaml.compose(text, Loader=_Loader)
    block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    if node is None or block or text[node.end_mark.index :].strip():
        raise BadDocument("file", "more follows its closing quote or bracket")
    return value


def parse_json(text: str) -> Any:
    try:
        return _require_portable(json.loads(text, object_pairs_hook=_unique_keys))
    except json.JSONDecodeError as error:
        raise BadDocument(f"line {error.lineno}, column {error.colno}", error.msg) from error
    except RecursionError as error:
        raise BadDocument("file", "is nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise BadDocument("file", str(error)) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise BadDocument("file", f"the key {key!r} is written twice")
        result[key] = value
    return result


def _require_portable(document: Any) -> Any:
    """Return the document if JSON can carry it, and if it neither explodes nor contains itself."""
    waiting: list[tuple[Any, str, int]] = [(document, "", 0)]
    count = 0
    while waiting:
        value, where, depth = waiting.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise BadDocument("file", "is too large, nested too deeply, or contains itself")
        prefix = f"{where}." if where else ""
        if isinstance(value, dict):
            waiting.extend((key, where, depth) for key in value)
            waiting.extend((item, f"{prefix}{key}", depth + 1) for key, item in value.items())
        elif isinstance(value, list):
            waiting.extend((item, f"{prefix}{i}", depth + 1) for i, item in enumerate(value))
        elif reason := _why_not_portable(value):
            raise BadDocument(where or "file", reason)
    return document


def _why_not_portable(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a number JSON can carry"
    if isinstance(value, int | float) and loses_digits(value):
        return LOST_DIGITS
    if isinstance(value, str) and _UNSTORABLE.search(value):
        return "text must not contain NUL or half a character (a lone surrogate)"
    return None
