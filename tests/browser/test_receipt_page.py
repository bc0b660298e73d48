"""The page that checks receipts says of each what the Python module says, opened from a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.async_api import Browser, Page

from surehand import verify
from tests import receipts
from tests.passkeys import Authenticator
from tests.receipts import BROKEN, EVA, FROM_CHAT, MALLORY, RIGHT, UNSIGNED, jwk, kid

PAGE = Path(verify.__file__).with_suffix(".html")


@pytest.fixture(scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context(offline=True)
    page = await context.new_page()
    errors: list[Any] = []
    page.on("pageerror", lambda error: errors.append(error))
    await page.goto(PAGE.as_uri())
    yield page
    await context.close()
    assert errors == []


def as_file(content: bytes, name: str = "file") -> Any:
    return {"name": name, "mimeType": "application/json", "buffer": content}


async def judged(page: Page, content: bytes, *keys: bytes) -> tuple[str | None, list[str]]:
    """Return what the page says of a receipt."""
    await page.evaluate("document.getElementById('said').hidden = true")
    await page.set_input_files("#receipt", [])
    await page.set_input_files("#keys", [as_file(one) for one in keys])
    await page.set_input_files("#receipt", as_file(content))
    said = page.locator("#said:not([hidden])")
    return await said.get_attribute("data-code"), (await said.inner_text()).split("\n")


def told(content: bytes, folder: Path, *trusted: str) -> tuple[str, list[str]]:
    """Return what the Python module says."""
    file = folder / "receipt"
    file.write_bytes(content)
    code, lines = verify.judge_file(file, trusted)
    return str(code), [line.removeprefix(f"{file}: ") for line in lines]


async def test_a_right_receipt_is_right_in_the_browser(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = EVA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    by_other_keys = []
    for key in (MALLORY, rsa.generate_private_key(65537, 3072)):
        monkeypatch.setattr(receipts, "BOB", Authenticator(key))
        by_other_keys.append(receipts.as_file(receipts.with_signature(receipts.evidence())))

    for right in (RIGHT, FROM_CHAT, UNSIGNED, *by_other_keys):
        assert await judged(page, right) == told(right, tmp_path)
    for key in (json.dumps(jwk(EVA)).encode(), pem):
        assert await judged(page, RIGHT, key) == told(RIGHT, tmp_path, kid(EVA))
    other = json.dumps(jwk(MALLORY)).encode()
    assert await judged(page, RIGHT, other) == told(RIGHT, tmp_path, kid(MALLORY))
    assert (await judged(page, RIGHT, b"nothing"))[0] == "2"


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_receipt_is_refused_in_the_browser(
    page: Page, name: str, tmp_path: Path
) -> None:
    code, lines = await judged(page, BROKEN[name].content)

    assert (code, lines) == told(BROKEN[name].content, tmp_path)
    assert code == "3"
