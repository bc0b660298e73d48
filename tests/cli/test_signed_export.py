"""``events --export --key`` and ``audit --file --signer``: two people and a file between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.starter import Run, Verbs


def test_an_export_is_signed_and_verified_with_neither_ledger_nor_server(
    verbs: Verbs, new_run: Callable[..., Run], tmp_path: Path
) -> None:
    run, file = new_run().name, tmp_path / "events.jsonl"
    for name in ("ana", "bob"):
        assert verbs("principal", "keygen", str(tmp_path / f"{name}.pem")).code == 0
    written = verbs("events", run, "--export", str(file), "--key", str(tmp_path / "ana.pem"))
    away = {"SUREHAND_DATABASE_URL": "sqlite:////none", "TEMPORAL_ADDRESS": "127.0.0.1:1"}

    def audit(*options: str) -> tuple[int, str]:
        ended = verbs("audit", "--file", str(file), *options, **away)
        return ended.code, ended.out

    assert f"signed by ana, verify with: python starter.py audit --file {file}" in written.out
    code, said = audit("--signer", str(tmp_path / "ana.pem.pub"))
    assert code == 0
    assert "Signed by ana (key " in said
    assert ": verified." in said
    code, said = audit()
    assert code == 0
    assert "Claims to be signed by ana (key " in said
    assert "NOT verified" in said
    code, said = audit("--signer", str(tmp_path / "bob.pem.pub"))
    assert (code, "made with another key" in said) == (3, True)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-2] + lines[-1:]))
    code, said = audit("--signer", str(tmp_path / "ana.pem.pub"))
    assert (code, "but event" in said) == (3, True)


def test_a_key_without_a_file_to_sign_is_refused(verbs: Verbs) -> None:
    assert "--export" in verbs("events", "r", "--key", "ana.pem").line()
    assert "--file" in verbs("audit", "r", "--signer", "ana.pem.pub").line()
