"""What the README shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path

from activities.crashpoints import CrashPoint
from activities.describing import literal_problems
from activities.settings import Settings
from activities.toolbox import load_toolbox
from cli.planfile import load_plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, title: str) -> str:
    """Return the one code block of a language under a heading."""
    pattern = rf"^```{language}\n(.*?)^```$"
    [text] = re.findall(pattern, section(title), flags=re.MULTILINE | re.DOTALL)
    return str(text)


def section(title: str) -> str:
    """Return the text under a heading."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_readmes_tools_are_a_file_that_loads() -> None:
    assert block("python", "Write a tool") == (ROOT / "examples" / "bank_tools.py").read_text(
        encoding="utf-8"
    )
    assert load_toolbox(["examples.bank_tools"]).names() == ["bank.cancel", "bank.refund"]


def test_the_readmes_plan_is_valid_and_fits_the_example_shops_tools(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(block("yaml", "Write a plan"), encoding="utf-8")
    toolbox = load_toolbox(["examples.shop.tools"])

    for step in load_plan(str(file), []).steps:
        tool = toolbox.get(step.tool)
        assert tool is not None, step.tool
        assert list(literal_problems(tool, step)) == []


def test_the_readme_names_every_setting_and_every_crash_point() -> None:
    named = set(re.findall(r"`([A-Z_]+)`", section("Settings")))

    assert {name.upper() for name in Settings.model_fields} <= named
    assert set(CrashPoint) <= set(re.findall(r"`([a-z_]+)`", section("Settings")))


def test_every_file_that_the_readme_names_is_there() -> None:
    named = re.findall(r"[\w./-]+\.(?:py|md|ya?ml|example)\b", README)

    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
