"""docker-compose.yml as Compose reads it, and what its words mean without containers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, cast

from tests.cluster.programs import ROOT, go

#: Only a browser talks to the first, and it is a Go program that is not to be had as a module; of a
#: new cluster there is no previous version; the codec server needs a token first; two only look on.
LEFT_OUT = {"temporal-ui", "worker-previous", "codec", "prometheus", "grafana"}


class Compose:
    """The file's services, with generated passwords and some settings filled in.

    Attributes:
        folder: Where named volumes live, one folder each.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        blanks = (ROOT / ".env.example").read_text().splitlines()
        names = [line.removesuffix("=") for line in blanks if line.endswith("=")]
        env_file = folder / "env"
        filled = {**{name: secrets.token_hex(8) for name in names}, **settings}
        env_file.write_text("".join(f"{name}={value}\n" for name, value in filled.items()))
        printed = go(
            *("run", ".", "-json", str(ROOT / "docker-compose.yml"), str(env_file)),
            folder=ROOT / "deploy/composecheck",
        )
        self.folder = folder
        read = json.loads(printed)
        self._services: dict[str, dict[str, Any]] = read["services"]
        self._volumes: list[str] = list(read["volumes"])
        #: What a word of the file is here: hosts, ports and folders of containers.
        self.here: dict[str, str] = {}

    def start_order(self) -> list[str]:
        """The services in an order in which each comes after all that it depends on."""
        graph = {name: self.depends_on(name) for name in self._services if name not in LEFT_OUT}
        return list(TopologicalSorter(graph).static_order())

    def depends_on(self, service: str) -> Mapping[str, Any]:
        """What a service waits for, with the condition."""
        return cast("dict[str, Any]", self._services[service].get("depends_on") or {})

    def volumes(self) -> list[str]:
        """The folders that stand in for named volumes, below ``folder``."""
        return [f"volumes/{name}" for name in self._volumes]

    def image_tag(self, service: str) -> str:
        return str(self._services[service]["image"]).rpartition(":")[2]

    def is_one_shot(self, service: str) -> bool:
        """Whether it ends by itself: it is started again only if it has failed."""
        return str(self._services[service].get("restart", "")).startswith("on-failure")

    def replicas(self, service: str) -> int:
        return int(self._services[service].get("deploy", {}).get("replicas", 1))

    def environment(self, service: str) -> dict[str, str]:
        """A service's environment, with this machine's addresses."""
        pairs: dict[str, str | None] = self._services[service].get("environment") or {}
        given = {name: value for name, value in pairs.items() if value is not None}
        return {name: self.translate(service, value) for name, value in given.items()}

    def command(self, service: str) -> list[str]:
        """What a service's container runs; empty when only its image knows."""
        found = self._services[service]
        words = [*(found.get("entrypoint") or []), *(found.get("command") or [])]
        return [self.translate(service, word) for word in words]

    def health_check(self, service: str) -> list[str]:
        kind, *words = self._services[service]["healthcheck"]["test"]
        assert kind == "CMD", f"{service}: a shell's health check cannot be translated"
        return [self.translate(service, word) for word in words]

    def translate(self, service: str, word: str) -> str:
        """Put this machine's addresses and folders for those of the containers."""
        for volume in self._services[service].get("volumes") or []:
            source = volume["source"]
            path = Path(source) if volume["type"] == "bind" else self.folder / "volumes" / source
            if word.startswith(volume["target"]):
                return str(path) + word.removeprefix(volume["target"])
        for there, here in self.here.items():
            # `host:port` anywhere in a URL; a host, a port or an address only as a whole word.
            if word == there or (":" in there and there in word):
                word = word.replace(there, here)
        return word
