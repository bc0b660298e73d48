"""The approver's key file, and what is signed with it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from surehand import verify
from surehand.activities.ledger.people.signatures import find_mismatch, verify_in_time
from surehand.client.messages import claims_for, new_key, read_key, sign
from surehand.process.exits import ExitCode, WrongUse
from surehand.verify import header_kid, kid_of, read_public_key
from surehand.workflows.contracts.approvals import Decision, DecisionClaims, DecisionOutcome
from tests.cli.starter import Run, Starter, Verbs
from tests.cli.terminal import Terminal

NOW = 1_800_000_000
DECISION = Decision(
    approval_id="acme/refund-1/refund/1",
    params_hash="sha256:" + "0" * 64,
    outcome=DecisionOutcome.REJECT,
    approver="Ada Lovelace <ada@example.com>, née Byron",
)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    new_key(tmp_path / "ada.pem")
    return tmp_path / "ada.pem"


def refused(file: Path) -> str:
    """The one line that somebody sees who names this file as a key."""
    with pytest.raises(WrongUse) as why:
        read_key(file)
    assert why.value.code == ExitCode.WRONG_USE
    assert str(file) in str(why.value) and "\n" not in str(why.value)
    return str(why.value)


def written(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    file.chmod(0o600)
    return file


def private_pem(key: Any, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    return pem


# Making one


def test_a_new_key_is_for_its_owner_alone_and_its_public_half_for_all(tmp_path: Path) -> None:
    file = tmp_path / "ada.pem"
    kid = new_key(file)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() == private_pem(read_key(file))
    public = (tmp_path / "ada.pem.pub").read_text()
    assert json.loads(public)["kid"] == kid == kid_of(read_public_key(public))
    assert "d" not in json.loads(public)


def test_a_new_key_is_private_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    born: list[int] = []
    make = os.open

    def opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = make(path, flags, mode, **more)
        born.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    before = os.umask(0)
    monkeypatch.setattr(os, "open", opened)
    try:
        new_key(tmp_path / "ada.pem")
    finally:
        os.umask(before)
    assert born == [0o600, 0o644]


@pytest.mark.parametrize("there", ["ada.pem", "ada.pem.pub"])
def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(WrongUse, match="is not overwritten"):
        new_key(tmp_path / "ada.pem")
    assert (tmp_path / there).read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == [there]


@pytest.mark.parametrize("there", ["ada.pem", "ada.pem.pub"])
def test_a_key_is_not_written_through_a_link(tmp_path: Path, there: str) -> None:
    (tmp_path / there).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WrongUse):
        new_key(tmp_path / "ada.pem")
    assert not (tmp_path / "elsewhere").exists()


# Reading one


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_that_only_its_owner_can_read_is_taken(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    assert read_key(key_file)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620, 0o601, 0o777])
def test_a_key_that_others_may_use_is_refused_with_what_to_do(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    assert refused(key_file).endswith(f"others may use it: chmod 600 {key_file}")


def test_the_line_to_paste_fits_a_name_with_spaces(tmp_path: Path) -> None:
    new_key(tmp_path / "my key")
    (tmp_path / "my key").chmod(0o644)
    assert f"chmod 600 '{tmp_path}/my key'" in refused(tmp_path / "my key")


def test_a_key_behind_a_link_is_judged_by_the_file_itself(key_file: Path) -> None:
    link = key_file.with_name("link")
    link.symlink_to(key_file)
    assert read_key(link)
    key_file.chmod(0o644)
    refused(link)


def test_another_users_key_is_refused(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: key_file.stat().st_uid + 1)
    assert "owns it, not you" in refused(key_file)


def test_a_folder_and_a_pipe_are_no_keys(tmp_path: Path) -> None:
    assert "Is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "it is not a file" in refused(tmp_path / "pipe")


def test_the_public_half_is_refused_as_such(key_file: Path) -> None:
    public = key_file.with_name("ada.pem.pub")
    public.chmod(0o600)
    assert "public key" in refused(public)


@pytest.mark.parametrize(
    "make", [Ed448PrivateKey.generate, lambda: ec.generate_private_key(ec.SECP256R1())]
)
def test_a_key_on_another_curve_is_refused(tmp_path: Path, make: Callable[[], Any]) -> None:
    assert "not an Ed25519 key" in refused(written(tmp_path / "key", private_pem(make())))


def test_an_encrypted_key_is_refused_with_what_to_do(key_file: Path) -> None:
    locked = written(key_file.with_name("locked"), private_pem(read_key(key_file), b"secret"))
    assert f"openssl pkey -in {locked}" in refused(locked)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"\0" * 100_000,
        b"-----BEGIN PRIVATE KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "no private key in PEM" in refused(written(tmp_path / "key", content))


# Signing


def test_what_is_signed_is_taken_for_this_decision_alone(key_file: Path) -> None:
    claims = claims_for(DECISION, "acme", "acme/refund-1", NOW)
    token = sign(read_key(key_file), claims)
    public = read_public_key(key_file.with_name("ada.pem.pub").read_text())

    assert header_kid(token, DecisionClaims.typ) == kid_of(public)
    assert verify_in_time(token, public, DecisionClaims, now_s=NOW) == claims
    assert find_mismatch(claims, DECISION, "acme/refund-1", "acme") is None
    other = DECISION.model_copy(update={"outcome": DecisionOutcome.APPROVE})
    assert (
        find_mismatch(claims, other, "acme/refund-1", "acme")
        == "the signature is for another outcome"
    )


def test_a_signature_lasts_five_minutes() -> None:
    assert claims_for(DECISION, "acme", "acme/refund-1", NOW).exp == NOW + 300


def test_each_signature_has_a_nonce_of_its_own() -> None:
    nonces = {claims_for(DECISION, "acme", "acme/refund-1", NOW).jti for _ in range(100)}
    assert len(nonces) == 100


def test_the_longest_ids_fit_into_a_signature(key_file: Path) -> None:
    run_id = f"{'t' * 39}/{'n' * 120}"
    longest = Decision(
        approval_id=f"{run_id}/{'s' * 200}/1",
        params_hash="sha256:" + "0" * 64,
        outcome=DecisionOutcome.APPROVE,
        approver="\U0001f600" * 200,
    )
    assert header_kid(
        sign(read_key(key_file), claims_for(longest, "t" * 39, run_id, NOW)), DecisionClaims.typ
    )


# ``receipt --key`` and ``surehand-verify --key``: two people and a file between them.


def test_a_receipt_is_signed_and_verified_with_neither_ledger_nor_server(
    verbs: Verbs, new_run: Callable[..., Run], tmp_path: Path
) -> None:
    run, file = new_run().name, tmp_path / "receipt.json"
    for name in ("ana", "bob"):
        assert verbs("principal", "keygen", str(tmp_path / f"{name}.pem")).code == 0
    signed = ("--key", str(tmp_path / "ana.pem"))
    printed, written = (verbs("receipt", run, *signed, *to) for to in ((), ("--to", str(file))))

    def judged(*options: str) -> tuple[int, str]:
        program = [sys.executable, str(Path(verify.__file__)), str(file), *options]
        ended = subprocess.run(program, capture_output=True, text=True, env={}, timeout=60)
        return ended.returncode, ended.stdout + ended.stderr

    assert (printed.code, written.code) == (0, 0), (printed, written)
    assert json.loads(printed.out)["events"] == json.loads(file.read_text())["events"]
    assert written.out == f"Receipt of run {run} written to {file}: surehand-verify {file}\n"
    code, said = judged("--key", str(tmp_path / "ana.pem.pub"))
    assert (code, "owner ana." in said, "you have named it" in said) == (0, True, True)
    assert "NOT PROVEN" in judged()[1]
    code, said = judged("--key", str(tmp_path / "bob.pem.pub"))
    assert (code, "which you have not named" in said) == (3, True)


def test_a_receipt_is_never_unsigned_and_overwrites_nothing_untold(
    verbs: Verbs, new_run: Callable[..., Run], starter: Starter, tmp_path: Path
) -> None:
    run, key = new_run().name, tmp_path / "ana.pem"
    assert verbs("principal", "keygen", str(key)).code == 0
    assert "receipts are signed: name your key" in verbs("receipt", run).line()
    ended = verbs("receipt", run, "--key", str(key), "--to", str(tmp_path / "none" / "file"))
    assert (ended.code, "cannot be written: No such file" in ended.line()) == (74, True)
    terminal = Terminal(starter.command("receipt", run), starter.environment, tmp_path)
    terminal.read_until(f"name a file: --to {run}.receipt.json")
    assert terminal.end() == 2
    file = tmp_path / "there"
    file.write_text("other")
    again = ("receipt", run, "--key", str(key), "--to", str(file))
    refused, kept = verbs(*again), file.read_text()
    assert (refused.code, "--force overwrites it" in refused.line(), kept) == (2, True, "other")
    assert (verbs(*again, "--force").code, file.read_text()[0]) == (0, "{")
