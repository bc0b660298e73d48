"""The fixture ``drill`` in somebody else's tests."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from surehand.process.children import clean_environment
from tests.cli.starter import LIMIT_S, ROOT

pytestmark = pytest.mark.crash

PLAN = """
name: notice
input: {order_id: order-1001}
steps:
  - id: mail
    tool: mail.send
    params: {order_id: "${input.order_id}", kind: notice, to: a@b.c, subject: Hello, body: Hello}
"""
TESTS = """
import pytest
from surehand.examples.shop.drill import fresh, world

@pytest.fixture
def report(drill):
    return drill("notice.yaml", world=world, fresh="surehand.examples.shop.drill:fresh",
                 tools=["surehand.examples.shop.tools"], points=["after_call"])

def test_the_shops_mail(report):
    assert report.ok, report
    assert [cell.effects for cell in report.cells] == [1]

def test_a_mail_that_goes_out_twice(forgetful_shop, report):
    assert report.ok, report
"""
CONFTEST = """
import httpx, os, pytest

@pytest.fixture
def forgetful_shop():
    with httpx.Client(base_url=os.environ["SHOP_URL"], trust_env=False) as shop:
        shop.put("/admin/faults/mails", json={"ignore_keys": True})
        yield
"""


def test_a_users_test_passes_and_fails(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "notice.yaml").write_text(PLAN)
    (tmp_path / "test_own.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "surehand.drill.plugin",
            "-p",
            "no:cacheprovider",
            "-q",
        ],
        cwd=tmp_path,
        env=clean_environment(
            {k: v for k, v in settings.items() if k != "SUREHAND_TOOL_MODULES"}
            | {"TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
        ),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 1 passed" in ended.stdout
    assert "world.effects.mails: 2, expected 1" in ended.stdout
    assert "FAILED test_own.py::test_a_mail_that_goes_out_twice" in ended.stdout


def test_the_package_registers_the_plugin_with_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [module] = project["entry-points"]["pytest11"].values()

    assert hasattr(importlib.import_module(module), "drill")
