from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from surehand.process.files import (
    Unreadable,
    parse_json,
    parse_yaml,
    read_document,
)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
        ("12:30", "12:30"),
        ("0123", "0123"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("no", "no"),
        ("on", "on"),
        (".inf", ".inf"),
        ("+5", "+5"),
        ("12", 12),
        ("-3", -3),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("'12'", "12"),
        ("!!str 12", "12"),
    ],
)
def test_a_value_is_what_it_looks_like(written: str, value: object) -> None:
    found = parse_yaml(f"key: {written}")["key"]

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("a: 1\na: 2\n", "line 2, column 1", "written twice"),
        ("- {a: 1, a: 2}\n", "line 1, column 10", "written twice"),
        ("1: a\n", "line 1, column 1", "must be text"),
        ("? [a]\n: b\n", "line 1, column 3", "must be text"),
        ("a: [1\n", "line 2, column 1", "expected"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1", "another document"),
        ("a: \x07\n", "character 3", "not allowed"),
        ("!!python/name:os.system {}\n", "line 1, column 1", "the tag"),
        ("a: !!int x\n", "line 1, column 4", "the tag"),
        ('a: !!int ""\n', "line 1, column 4", "the tag"),
        ("a: !!bool maybe\n", "line 1, column 4", "the tag"),
        ("a: !!binary aGk=\n", "line 1, column 4", "the tag"),
        ("a: {b: !!timestamp x}\n", "line 1, column 8", "the tag"),
        ("a: !!set {b}\n", "line 1, column 4", "the tag"),
        ("a: !own {}\n", "line 1, column 4", "the tag"),
        ("a: [1, 9007199254740992]\n", "a.1", "2^53"),
        ("a: 9007199254740993.0\n", "a", "2^53"),
        ("a: {b: -9.007199254740993e15}\n", "a.b", "2^53"),
        ("a: 1e999\n", "a", "JSON"),
        ('a: "\\0"\n', "a", "NUL"),
        ('a: {"\\ud800": 1}\n', "a", "surrogate"),
        ("&a [*a]\n", "file", "contains itself"),
        ("[" * 5000, "file", "nested too deeply"),
    ],
)
def test_a_document_that_cannot_be_carried_is_refused_with_its_place(
    text: str, where: str, reason: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        parse_yaml(text)

    assert refused.value.where == where
    assert reason in refused.value.reason


def test_aliases_cannot_blow_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    with pytest.raises(Unreadable, match="too large"):
        parse_yaml("\n".join(lines))


@pytest.mark.parametrize("copies", [2, 50])
def test_merges_cannot_blow_up_before_they_are_counted(copies: int) -> None:
    merged = [f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * copies)}]}}" for n in range(1, 30)]
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable, match=r"merges .* more than 100,000 values") as refused:
            parse_yaml("\n".join(["x0: &x0 {k: 1}", *merged]))
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()

    assert refused.value.where.startswith("line ")


def test_a_json_document_has_no_number_that_may_be_another_one_by_now(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"input": {"amount": 9007199254740993.0}}')

    with pytest.raises(Unreadable, match=r"input.amount: .*2\^53"):
        read_document(file)


def test_anchors_and_merges_are_kept() -> None:
    document = parse_yaml("base: &b {tool: t, on_no: fail}\nstep: {<<: *b, on_no: continue}\n")

    assert document["step"] == {"tool": "t", "on_no": "continue"}


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ('{"a": 1, "a": 2}', "file", "written twice"),
        ('{"a": 1', "line 1, column 8", "Expecting"),
        ('{"a": NaN}', "a", "not a number"),
    ],
)
def test_json_is_read_as_strictly(tmp_path: Path, text: str, where: str, reason: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)

    with pytest.raises(Unreadable) as refused:
        read_document(file)

    assert refused.value.where == where
    assert reason in refused.value.reason


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")

    with pytest.raises(Unreadable, match="No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(Unreadable, match="directory"):
        read_document(tmp_path)
    with pytest.raises(Unreadable, match="UTF-8"):
        read_document(tmp_path / "latin.yaml")


@pytest.mark.parametrize("read", [parse_json, parse_yaml])
def test_a_number_of_thousands_of_digits_is_refused(
    read: Callable[[str], object],
) -> None:
    with pytest.raises(Unreadable, match="digits"):
        read("1" * 5000)
