"""Alerts and dashboard ask for metrics that exist, and each alert has its page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from docs.meanings import LABELS
from docs.reference import instruments
from tests.conftest import missing
from tests.docs.pages import DOCS, ROOT

PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
PAGE: Final = DOCS / "howto" / "alerts.md"
#: What Prometheus itself has of all that it looks at, and the parts of a histogram.
_ITS_OWN: Final = {"up", "le", "job", "instance"}
_PARTS: Final = ("_bucket", "_count", "_sum")
#: A metric, and the labels that are asked for.
_SELECTOR: Final = re.compile(r"\b((?:surehand|temporal)_\w+)(?:\{([^}]*)\})?")
_GROUPED: Final = re.compile(r"by \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    read = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((ROOT / "deploy/grafana/surehand.json").read_text())
    return read


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each question that is put to Prometheus, with its place."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    found = board()
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in found["templating"]["list"]:
        if "label_values" in str(variable.get("query")):
            yield variable["name"], variable["query"]


def ours() -> dict[str, str]:
    """Return our metrics as the endpoint has them, each with the text of its labels."""
    return {shown: LABELS[name] for name, shown, _ in instruments()}


def whole(name: str) -> str:
    """Return the metric that a series is of."""
    part = next((end for end in _PARTS if name.endswith(end)), "")
    return name.removesuffix(part)


def metrics_asked_for() -> set[str]:
    return {whole(name) for _, asked in expressions() for name, _ in _SELECTOR.findall(asked)}


def test_each_of_our_metrics_that_is_asked_for_exists() -> None:
    asked = {name for name in metrics_asked_for() if name.startswith("surehand_")}

    assert len(asked) > 8
    assert asked - ours().keys() == set()


def test_the_dashboard_shows_each_of_our_metrics() -> None:
    shown = " ".join(t["expr"] for p in board()["panels"] for t in p.get("targets", ()))

    assert [name for name in ours() if name not in shown] == []


def test_each_label_of_ours_that_is_asked_for_exists_with_that_value() -> None:
    for place, asked in expressions():
        names = _SELECTOR.findall(asked)
        told = " ".join(ours().get(whole(name), "") for name, _ in names)
        for name, selector in names:
            for label, _, value in re.findall(r'(\w+)(=~?|!=)"([^"]*)"', selector):
                if label in _ITS_OWN or name.startswith("temporal_"):
                    continue
                assert f"`{label}`" in ours()[whole(name)], f"{place}: {label}"
                for one in value.split("|") if "$" not in value else ():
                    assert f"`{one}`" in ours()[whole(name)], f"{place}: {label}={one}"
        for group in _GROUPED.findall(asked):
            for label in filter(None, re.split(r"[ ,]+", group)):
                known = label in _ITS_OWN or f"`{label}`" in told or "temporal_" in asked
                assert known, f"{place}: by ({label})"


def test_each_alert_says_how_bad_it_is_what_is_wrong_and_where_to_read_on() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "runbook"}, rule["alert"]


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert headings == [rule["alert"] for rule in rules()]
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / page, anchor) == (PAGE, rule["alert"].lower())


def test_each_section_says_what_it_means_where_to_look_and_what_to_do() -> None:
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        assert re.findall(r"^\*\*(\w+)\*\*: ", section, re.MULTILINE) == ["Means", "Look", "Do"]


@pytest.mark.parametrize("words", ["check rules alerts.yml", "test rules alerts_test.yml"])
def test_prometheus_itself_takes_the_alerts_and_they_come_and_go_as_they_should(words: str) -> None:
    if shutil.which("promtool") is None:
        missing("promtool is not on PATH: install Debian's package prometheus")
    done = subprocess.run(
        ["promtool", *words.split()], cwd=PROMETHEUS, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
