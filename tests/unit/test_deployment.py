"""The Compose file, the image and the manifests confine what runs, and set what is a setting."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from surehand.activities.worker.settings import Settings, load_settings
from surehand.process.settings import PREFIX
from tests.conftest import missing

ROOT: Final = Path(__file__).parents[2]
#: Settings of the service `approvals` alone: no worker has the secret that signs people in.
OF_THE_PAGES: Final = {
    "oidc_issuer",
    "oidc_client_id",
    "oidc_client_secret",
    "oidc_principals",
    "slack_signing_secret",
    "chat_key",
    "chat_principals",
}
#: Settings that no worker of the file takes from outside, and why.
NOT_HANDED_ON: Final = {
    "deployment_name": "several services of the file have to mean the same one",
    "graceful_shutdown": "the container's stop_grace_period goes with it",
    "fsync_off": "for tests",
    "retention": "of `retention`, which has a role of its own, and no worker",
    "cells": "the file is one cell",
    "cell": "the same",
    "crash_at": "for drills",
    "crash_by": "for drills",
    "crash_once": "for drills",
    "tenant": "a starter's, and of `retention`",
    "user": "a starter's",
    "key": "a starter's, and a private key",
    **{name: "of the approvers' pages, which have them below" for name in OF_THE_PAGES},
}
#: Settings that the file itself gives, as a part of the cluster that it makes.
OF_THE_CLUSTER: Final = {"database_url", "health", "task_queue", "log_format"}


def environment(service: str = "worker") -> dict[str, Any]:
    read = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    found: dict[str, Any] = read["services"][service]["environment"]
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in found.items()
        if name.startswith(PREFIX)
    }


def from_outside(service: str = "worker") -> set[str]:
    """What a container takes from ``.env``, as it stands there or with a default."""
    return {
        name
        for name, value in environment(service).items()
        if value is None or f"${{{PREFIX}{name.upper()}" in str(value)
    }


def test_each_setting_of_a_worker_is_in_the_compose_file_or_is_said_why_not() -> None:
    known = set(Settings.model_fields)
    assert NOT_HANDED_ON.keys() <= known
    assert set(environment()) == known - NOT_HANDED_ON.keys()
    assert from_outside() == set(environment()) - OF_THE_CLUSTER


def test_the_approvers_pages_have_a_worker_s_settings_and_the_identity_provider_s() -> None:
    assert set(environment("approvals")) == set(environment()) | OF_THE_PAGES
    assert from_outside("approvals") == from_outside() | OF_THE_PAGES


def test_each_setting_that_the_compose_file_takes_from_outside_is_in_the_example() -> None:
    example = (ROOT / ".env.example").read_text()
    named = {one.lower() for one in re.findall(rf"^#?{PREFIX}([A-Z_]+)=", example, re.MULTILINE)}
    images = {"image", "previous_image", "previous_build_id"}
    assert named - images == from_outside("approvals") | from_outside("retention")


def test_what_deletes_has_its_own_role_and_none_of_the_workers_secrets() -> None:
    own = environment("retention")

    assert "//surehand_retention:${LEDGER_RETENTION_PASSWORD" in own["database_url"]
    assert own["artifacts"] == environment()["artifacts"]
    assert set(own) - set(environment()) == {"retention", "tenant"}
    assert "key_encryption_keys" not in own


#: Images of others, which begin as root, or write into themselves.
OTHERS: Final = {
    "postgres",
    "temporal-schema",
    "temporal",
    "temporal-namespace",
    "temporal-ui",
    "current-version",
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


MANIFESTS: Final = ROOT / "deploy/kubernetes"
#: What is no setting of ours, or no container's.
OF_TEMPORAL: Final = {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"}
NO_SETTINGS: Final = {"LEDGER"}


def objects() -> list[dict[str, Any]]:
    """Every object of every file, as written."""
    files = [file for file in MANIFESTS.rglob("*.yaml") if file.name != "kustomization.yaml"]
    read = [one for file in sorted(files) for one in yaml.safe_load_all(file.read_text())]
    return [one for one in read if isinstance(one, dict) and "kind" in one]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods that they make, each with the name of what makes it."""
    for one in objects():
        template = one.get("spec", {}).get("template", {})
        if "spec" in template:
            yield one["metadata"]["name"], template["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods():
        for one in (*pod.get("initContainers", ()), *pod["containers"]):
            yield f"{name}/{one['name']}", one


def settings_file() -> dict[str, str]:
    lines = (MANIFESTS / "base/settings.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_each_pod_is_confined() -> None:
    made = {"ledger", "reconcile-schedule", "worker", "codec", "retention"}
    assert {name for name, _ in pods()} == made
    for name, pod in pods():
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["seccompProfile"]["type"]) == (
            True,
            "RuntimeDefault",
        ), name
        assert pod["automountServiceAccountToken"] is False, name
    for name, container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert "limits" in container["resources"], name
        assert {"name": "scratch", "mountPath": "/tmp"} in container["volumeMounts"], name


def test_no_secret_is_written_and_who_owns_and_who_deletes_have_roles_of_their_own() -> None:
    assert not [one for one in objects() if one["kind"] == "Secret"]
    for secret, theirs in {
        "surehand-ledger-owner": {"ledger/migrations", "ledger/grants"},
        "surehand-ledger-retention": {"retention/retention"},
    }.items():
        assert {name for name, one in containers() if secret in yaml.dump(one)} == theirs, secret


def test_what_the_manifests_set_is_a_setting_and_means_what_it_should(tmp_path: Path) -> None:
    given = settings_file()
    assert given.keys() >= OF_TEMPORAL
    for name, container in containers():
        named = {one["name"] for one in container.get("env", ())} - NO_SETTINGS
        known = {f"{PREFIX}{one.upper()}" for one in Settings.model_fields}
        assert named <= known, name

    database = {"SUREHAND_DATABASE_URL": "postgresql://worker@db/surehand"}
    settings = load_settings({**given, **database}, tmp_path / "none")

    assert settings.decisions == "signed"
    [worker] = [container for name, container in containers() if name == "worker/worker"]
    ports = {one["name"]: str(one["containerPort"]) for one in worker["ports"]}
    assert ports["health"] == settings.health.rpartition(":")[2]
    assert ports["metrics"] == settings.metrics.rpartition(":")[2]


def test_a_worker_that_is_ended_has_longer_than_its_calls_may_take() -> None:
    [pod] = [pod for name, pod in pods() if name == "worker"]
    calls = Settings.model_fields["graceful_shutdown"].default
    assert pod["terminationGracePeriodSeconds"] >= calls.total_seconds() + 10


def test_a_version_of_the_worker_controller_is_the_worker_s_own(tmp_path: Path) -> None:
    # So temporal-worker-controller 1.11 tells its pods (internal/k8s/deployments.go).
    told = {
        **settings_file(),
        "SUREHAND_DATABASE_URL": "postgresql://worker@db/surehand",
        "TEMPORAL_DEPLOYMENT_NAME": "surehand/worker",
        "TEMPORAL_WORKER_BUILD_ID": "0.1.0-6f9d",
    }
    nowhere = tmp_path / "none"

    settings = load_settings(told, nowhere)
    own = load_settings({**told, "SUREHAND_BUILD_ID": "", "SUREHAND_DEPLOYMENT_NAME": "x"}, nowhere)

    assert (settings.deployment_name, settings.build_id) == ("surehand/worker", "0.1.0-6f9d")
    assert (own.deployment_name, own.build_id) == ("x", "")


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_kubernetes_takes_the_manifests(tmp_path: Path, broken: bool) -> None:
    if shutil.which("go") is None:
        missing("Go")
    deploy = shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    page = (ROOT / "docs/howto/kubernetes.md").read_text()
    own = deploy / "kubernetes/mine"
    own.mkdir()
    written = page.partition("<<'EOF'\n")[2].partition("EOF\n")[0]
    (own / "kustomization.yaml").write_text(written)
    if broken:
        workers = deploy / "kubernetes/base/workers.yaml"
        text = workers.read_text()
        workers.write_text(text.replace("readOnlyRootFilesystem", "readOnlyRootFileSystem", 1))

    done = subprocess.run(
        ["go", "run", ".", *(f"../kubernetes/{one}" for one in ("workers", "controller", "mine"))],
        cwd=deploy / "kubecheck",
        env={**os.environ, "GOFLAGS": "-buildvcs=false"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == int(broken), done.stderr
    assert done.stderr.count("'readOnlyRootFileSystem' not allowed") == 3 * broken
