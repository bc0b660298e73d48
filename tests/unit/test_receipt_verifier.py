"""What strangers are told of a receipt: right as it was signed, and refused if anything changed."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from surehand import verify
from surehand.workflows.canonical_json import canonical_json
from tests.receipts import ANN, BROKEN, EVA, FROM_CHAT, MALLORY, RIGHT, UNSIGNED, forged, jwk, kid

SOURCE = Path(verify.__file__)


def judged(content: bytes, folder: Path, *trusted: str) -> tuple[int, str]:
    file = folder / "receipt.json"
    file.write_bytes(content)
    code, lines = verify.judge_file(file, trusted)
    return code, "\n".join(lines)


def test_a_receipt_as_it_was_signed_is_right(tmp_path: Path) -> None:
    code, said = judged(RIGHT, tmp_path, kid(EVA))

    assert code == 0, said
    for line in (
        "Receipt of run acme/refund-1, tenant acme: RIGHT.",
        f"  Key {kid(EVA)}: you have named it; the receipt calls its owner eva.",
        f"  Key {kid(ANN)}: the receipt's signature vouches for it; the receipt calls its owner"
        " ann.",
        "  Undone in the reverse order of their commits.",
    ):
        assert line in said.splitlines(), said
    assert "entry ef-1), params sha256:" in said and ": committed, then undone." in said
    assert "NOT signed: the name is only claimed" in judged(UNSIGNED, tmp_path)[1]
    assert "by a button in a chat, for which key" in judged(FROM_CHAT, tmp_path, kid(EVA))[1]
    assert judged(RIGHT.removesuffix(b"\n"), tmp_path)[0] == 0


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_receipt_is_refused_and_says_why(name: str, tmp_path: Path) -> None:
    code, said = judged(BROKEN[name].content, tmp_path)

    assert code == 3
    assert BROKEN[name].reason in said, said
    assert len(set(said.splitlines())) == len(said.splitlines()), "each problem is told once"


def test_a_receipt_that_a_stranger_has_signed_is_refused_if_a_key_is_named(tmp_path: Path) -> None:
    own = forged(lambda receipt: None, MALLORY)

    assert "NOT PROVEN" in judged(own, tmp_path)[1]
    code, said = judged(own, tmp_path, kid(EVA))
    assert (code, f"it is signed with key {kid(MALLORY)}" in said) == (3, True)


def test_a_huge_file_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "LARGEST_RECEIPT_FILE", len(RIGHT))
    assert judged(RIGHT, tmp_path)[0] == 0
    code, said = judged(RIGHT + b" ", tmp_path)
    assert (code, len(said.splitlines()), "larger than" in said) == (3, 1, True)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = [at] if at else []
    for name, one in inside:
        found += paths(one, (*at, name)) if isinstance(one, dict | list) else [(*at, name)]
    return found


VALUE = json.loads(RIGHT)
PATHS = paths(VALUE)
OTHERS: list[Any] = [None, True, False, 0, 1, -1, 1.5, "", "x", [], {}, "sha256:" + "0" * 64]


@given(
    st.sampled_from(PATHS), st.sampled_from(["replace", "delete", "twice", "reverse"]), st.data()
)
@example(("events", 0, "body", "user"), "delete", None)
def test_whatever_is_changed_in_a_receipt_it_is_refused(
    path: tuple[Any, ...], how: str, data: Any
) -> None:
    receipt = copy.deepcopy(VALUE)
    inside = receipt
    for name in path[:-1]:
        inside = inside[name]
    last, old = path[-1], inside[path[-1]]
    if how == "replace":
        inside[last] = data.draw(st.sampled_from([*OTHERS, VALUE["events"], f"{old}x"]))
    elif how == "delete":
        del inside[last]
    elif how == "twice" and isinstance(inside, list):
        inside.insert(last, copy.deepcopy(old))
    elif how == "reverse" and isinstance(old, list | str):
        inside[last] = old[::-1]
    changed = canonical_json(receipt) + b"\n"
    if changed != RIGHT:
        assert refused(changed)


def refused(content: bytes) -> bool:
    try:
        return bool(verify.find_problems(verify.parse_receipt(content)))
    except verify.Invalid:
        return True


@given(st.integers(0, len(RIGHT) - 2), st.integers(1, 255))
def test_whichever_byte_is_flipped_it_is_refused(at: int, bits: int) -> None:
    assert refused(RIGHT[:at] + bytes([RIGHT[at] ^ bits]) + RIGHT[at + 1 :])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
@example([1e21, 1e20, 1.5e-7, 1e-6, -0.0, 5e-324, 123456789012345680000.0, 0.1, 1e23])
@example({"\ufb33": 1, "\U0001f600": 2, "\u20ac": '\u2028\x7f\x1f\\"'})
def test_the_canonical_form_is_that_of_the_library(value: Any) -> None:
    assert verify.canonical(value).encode() == rfc8785.dumps(value)


ALONE = """
import importlib.abc, runpy, sys

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names | {"cryptography", "_cffi_backend"}:
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Nothing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_alone(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", ALONE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_one_file_works_where_nothing_but_cryptography_is(tmp_path: Path) -> None:
    copied = tmp_path / "stranger.py"
    shutil.copyfile(SOURCE, copied)
    file, bad, key, der = (tmp_path / name for name in ("receipt", "bad", "eva.pub", "eva.der"))
    file.write_bytes(RIGHT)
    bad.write_bytes(BROKEN["a key swapped"].content)
    key.write_text(json.dumps(jwk(EVA)))
    der.write_bytes(b"0*0\x05\x06\x03+ep\x03!\x00\xff\xfe")

    right, broken = run_alone(copied, file, "--key", key), run_alone(copied, bad)
    nothing, unnamed = run_alone(copied, tmp_path / "none"), run_alone(copied)

    assert (right.returncode, right.stderr) == (0, "")
    assert "RIGHT." in right.stdout and "you have named it" in right.stdout
    assert (broken.returncode, broken.stdout) == (3, "")
    assert "nothing proves decision" in broken.stderr
    assert (nothing.returncode, "No such file" in nothing.stderr) == (2, True)
    assert unnamed.returncode == 2
    assert run_alone(copied, file, "--key", file).returncode == 2
    binary = run_alone(copied, file, "--key", der)
    assert binary.returncode == 2
    assert "--key: it is neither one public key in PEM nor a JWK" in binary.stderr


@pytest.mark.parametrize("what", ["receipt", "--page"])
def test_a_reader_that_has_gone_ends_it_quietly(what: str, tmp_path: Path) -> None:
    (tmp_path / "receipt").write_bytes(RIGHT)
    reading, writing = os.pipe()
    os.close(reading)

    ended = subprocess.run(
        [sys.executable, SOURCE, what],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
    )

    os.close(writing)
    # A shell makes 141 of it.
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, b"")


def test_what_is_in_a_receipt_does_not_act_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "receipt"
    file.write_bytes(forged(lambda receipt: None, sub="eva\x1b[2K\u202e"))

    assert verify.main([str(file)]) == 0
    assert "eva\\u001b[2K\\u202e" in capsys.readouterr().out
