"""What runs of ours, in containers, is nobody's root and writes where it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
#: Images of others, which begin as root, or write into themselves.
OTHERS: Final = {
    "postgres",
    "temporal-schema",
    "temporal",
    "temporal-namespace",
    "temporal-ui",
    "ledger-grants",
}
#: Images of others that say themselves as whom they run.
NO_ROOT_ANYWAY: Final = {"prometheus", "grafana"}


def services() -> dict[str, dict[str, Any]]:
    read = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return {name: one for name, one in read["services"].items() if name not in OTHERS}


def test_each_service_of_ours_is_confined() -> None:
    found = services()
    assert {"worker", "approvals", "ledger-migrations", "worker-previous"} <= found.keys()
    for name, service in found.items():
        assert service["read_only"] is True, name
        assert service["tmpfs"] == ["/tmp"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service and "cap_add" not in service, name
        assert service.get("user") == (None if name in NO_ROOT_ANYWAY else "10001"), name


def test_the_image_s_user_is_the_one_that_compose_and_kubernetes_name() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]
    assert lines.index("USER 10001") > max(
        number for number, line in enumerate(lines) if line.startswith(("RUN", "COPY"))
    )
    for file in (ROOT / "deploy/kubernetes").rglob("*.yaml"):
        assert file.read_text().count("runAsUser: ") == file.read_text().count("runAsUser: 10001")
