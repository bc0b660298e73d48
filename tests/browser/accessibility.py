"""What axe-core finds in a page: what keeps people out who hear it, or use no mouse."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page

from tests.conftest import missing
from tests.locked_packages import NPM, PackagesMissing, installed

LOCKS: Final = Path(__file__).parent / "axe"
#: The rules of WCAG 2.2, levels A and AA.
_RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
_FOUND: Final = """
async ([runOnly, rules]) => {
  const { violations } = await axe.run(document, { runOnly, rules });
  return violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => `${id}: ${node.target.join(" ")}: ${node.failureSummary}`));
}
"""


@cache
def _source() -> str:
    names = ("package.json", "package-lock.json")
    try:
        folder = installed("axe", [LOCKS / name for name in names], (NPM,))
    except PackagesMissing as error:
        missing(str(error))
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def violations(page: Page, *passed_over: str) -> list[Any]:
    """Return what is wrong with a page as it is now, a line for each element.

    Args:
        page: The page.
        passed_over: Rules of axe-core that it need not keep.
    """
    # By the browser's debugger, not as a script of the page: its rules would refuse it.
    await page.evaluate(_source())
    rules = {rule: {"enabled": False} for rule in passed_over}
    found = await page.evaluate(_FOUND, [list(_RULES), rules])
    assert isinstance(found, list)
    return found
