"""Starts what docker-compose.yml starts, in its order, with its environment and commands."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from surehand.process.children import Child
from tests.cluster.compose import Compose
from tests.cluster.programs import ROOT, collect, config_template, copy_image, go
from tests.postgres_server import PostgresServer

#: Seconds. The schema's migrations and a server's first start on two busy cores.
READY_TIMEOUT = 120.0
STOP_TIMEOUT = 40.0  # seconds; workers take up to 20 to end the calls under way


class Cluster:
    """A running cluster; ends with the ``with`` block.

    Attributes:
        compose: The file, with this machine's addresses.
        postgres: Its database server.
        workers: Its worker processes.
    """

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="surehand-cluster-")
        self.folder = Path(self._temporary.name)
        self.compose = Compose(self.folder)
        self.workers: list[Child] = []
        self._running: dict[str, list[Child]] = {}
        for name in ("bin", "app", "logs", "config", *self.compose.volumes()):
            (self.folder / name).mkdir(parents=True)
        self.version = self.compose.image_tag("temporal")
        collect(self.folder / "bin", self.version)
        copy_image(self.folder / "app")

    def __enter__(self) -> Cluster:
        self.postgres = PostgresServer.start()
        try:
            ports = _free_ports(10)
            self._temporal_ports = ports[:9]
            self.compose.here = {
                "postgres:5432": f"127.0.0.1:{self.postgres.port}",
                "temporal:7233": f"127.0.0.1:{ports[0]}",
                "shop:8090": f"127.0.0.1:{ports[9]}",
                "postgres": "127.0.0.1",
                "0.0.0.0": "127.0.0.1",
                "5432": str(self.postgres.port),
                "7233": str(ports[0]),
                "8090": str(ports[9]),
                "python": sys.executable,
            }
            for service in self.compose.start_order():
                self._start(service)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for service in reversed(list(self._running)):
            for process in self._running[service]:
                process.signal(signal.SIGTERM)
            for process in self._running[service]:
                process.stop(within=STOP_TIMEOUT)
        self.postgres.remove()
        self._temporary.cleanup()

    def run(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command (default: the service's own) to its end, as in a service's container."""
        return subprocess.run(
            command or self.compose.command(service),
            cwd=self.folder / "app",
            env=self._environment(service),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY_TIMEOUT,
        )

    def log(self, service: str) -> str:
        """What all processes of a service have printed."""
        return "\n".join(p.read_text() for p in sorted((self.folder / "logs").glob(f"{service}-*")))

    def wait_for_log(self, service: str, word: str, times: int) -> None:
        """Wait until the processes of a service have printed a word so often."""
        deadline = time.monotonic() + READY_TIMEOUT
        while self.log(service).count(word) < times:
            assert time.monotonic() < deadline, f"{service} did not say {word}: {self.log(service)}"
            time.sleep(0.05)

    def _environment(self, service: str) -> dict[str, str]:
        """Nothing of the caller's but a home: what a container lacks, its processes lack here."""
        here = {"PATH": str(self.folder / "bin"), "HOME": str(self.folder)}
        if service == "temporal":
            # Of the image's, not of the file: one machine has each port only once.
            names = ("FRONTEND", "HISTORY", "MATCHING", "WORKER")
            grpc, member = self._temporal_ports[:4], self._temporal_ports[4:8]
            here |= {f"{n}_GRPC_PORT": str(p) for n, p in zip(names, grpc, strict=True)}
            here |= {f"{n}_MEMBERSHIP_PORT": str(p) for n, p in zip(names, member, strict=True)}
            here["FRONTEND_HTTP_PORT"] = str(self._temporal_ports[8])
        if service == "postgres":
            here["PGPORT"] = str(self.postgres.port)
        return here | self.compose.environment(service)

    def _start(self, service: str) -> None:
        for dependency, how in self.compose.depends_on(service).items():
            if how["condition"] == "service_healthy":
                self._wait_until_healthy(dependency)
        began = time.monotonic()
        if service == "postgres":
            self._fill_postgres()
        elif service == "temporal":
            self._start_temporal()
        elif self.compose.is_one_shot(service):
            done = self.run(service)
            assert done.returncode == 0, f"{service} failed:\n{done.stdout}{done.stderr}"
        else:
            for _ in range(self.compose.replicas(service)):
                self.spawn(service, self.compose.command(service))
        print(f"{service}: {time.monotonic() - began:.1f} s", flush=True)

    def spawn(self, service: str, command: list[str]) -> None:
        """Start one more process of a service."""
        number = len(self._running.setdefault(service, []))
        log, environment = self.folder / "logs" / f"{service}-{number}", self._environment(service)
        process = Child(command, environment=environment, log=log, folder=self.folder / "app")
        self._running[service].append(process)
        if service == "worker":
            self.workers.append(process)

    def _fill_postgres(self) -> None:
        """What the image does on its first start: run init.sql, then ask everybody who they are."""
        where = ["-h", "127.0.0.1", "-p", str(self.postgres.port), "-U", "postgres"]
        script = self.compose.translate("postgres", "/docker-entrypoint-initdb.d/init.sql")
        done = self.run("postgres", "psql", *where, "-X", "-v", "ON_ERROR_STOP=1", "-f", script)
        assert done.returncode == 0, done.stderr
        rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (self.postgres.folder / "data" / "pg_hba.conf").write_text(rules)
        self.postgres.execute("SELECT pg_reload_conf()")

    def _start_temporal(self) -> None:
        """What the image does: render its config from the environment, then serve."""
        script, template = ROOT / "tests/cluster/render.go", config_template(self.version)
        environment = self._environment("temporal") | _go()
        config = go("run", str(script), str(template), environment=environment)
        (self.folder / "config" / "docker.yaml").write_text(config)
        serve = ["temporal-server", "--root", str(self.folder), "--env", "docker", "start"]
        self.spawn("temporal", [str(self.folder / "bin" / serve[0]), *serve[1:]])

    def _wait_until_healthy(self, service: str) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        check = self.compose.health_check(service)
        while not self._healthy(service, check):
            for process in self._running.get(service, []):
                assert process.running, f"{service} ended:\n{self.log(service)}"
            assert time.monotonic() < deadline, f"{service} is not healthy:\n{self.log(service)}"
            time.sleep(0.05)

    def _healthy(self, service: str, check: list[str]) -> bool:
        if check[0] == "nc":  # As it is called here it only asks whether somebody listens.
            with socket.socket() as client:
                return client.connect_ex((check[-2], int(check[-1]))) == 0
        return self.run(service, *check).returncode == 0


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, below 32768: Temporal's schema keeps them in a smallint."""
    free: list[int] = []
    while len(free) < number:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            if port not in free and probe.connect_ex(("127.0.0.1", port)) != 0:
                free.append(port)
    return free


def _go() -> dict[str, str]:
    """What Go itself needs, beside the environment that the template is rendered from."""
    return {name: os.environ[name] for name in ("PATH", "HOME")}
