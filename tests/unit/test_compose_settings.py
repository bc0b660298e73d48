"""docker-compose.yml hands on every setting of a worker, and .env.example tells of those set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from surehand.activities.worker.settings import Settings
from surehand.process.settings import PREFIX

ROOT: Final = Path(__file__).parents[2]
#: Settings of the service `approvals` alone: no worker has the secret that signs people in.
OF_THE_PAGES: Final = {
    "oidc_issuer",
    "oidc_client_id",
    "oidc_client_secret",
    "oidc_claim",
    "oidc_principals",
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
    "codec_endpoint": "a starter's, where it has no keys",
    "codec_token": "the same",
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
