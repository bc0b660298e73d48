"""Starts what docker-compose.yml starts, in its order, with its environment and commands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sqlalchemy import make_url

from surehand.process.children import Child
from surehand.process.dev_server import free_ports
from tests.cli.starter import Starter
from tests.cluster.compose import Compose
from tests.cluster.programs import ROOT, collect, config_template, copy_image, go
from tests.ledger_databases import WORKER
from tests.pgbouncer import PgBouncer
from tests.postgres_server import PostgresServer

#: Seconds. The schema's migrations and a server's first start on two busy cores.
READY_TIMEOUT = 120.0
#: Where the file's workers say whether they are well.
HEALTH = "127.0.0.1:9465"
#: Connections of the pooler to the ledger; two workers want more.
POOLED = 20
STOP_TIMEOUT = 40.0  # seconds; workers take up to 20 to end the calls under way


class Cluster:
    """A running cluster; ends with the ``with`` block.

    Attributes:
        compose: The file, with this machine's addresses.
        postgres: Its database server.
        workers: Its worker processes.
    """

    def __init__(
        self,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        pooled: bool = False,
        quick: bool = False,
    ) -> None:
        """Prepare it.

        Args:
            settings: What else is filled in in `.env`.
            pooled: The workers reach the ledger through PgBouncer in transaction mode.
            quick: The command line begins as a copy of this checkout's, which has loaded all verbs,
                and not from the image's files.
        """
        self._pooled = pooled
        self._quick = quick
        self._pool: PgBouncer | None = None
        self._temporary = tempfile.TemporaryDirectory(prefix="surehand-cluster-")
        self.folder = Path(self._temporary.name)
        self.compose = Compose(self.folder, settings)
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
            ports = free_ports(13)
            self._temporal_ports = ports[:9]
            self.compose.here = {
                "postgres:5432": f"127.0.0.1:{self.postgres.port}",
                "temporal:7233": f"127.0.0.1:{ports[0]}",
                "shop:8090": f"127.0.0.1:{ports[9]}",
                HEALTH: f"127.0.0.1:{ports[10]}",
                # Where `codec` and `approvals` listen, ask themselves, and are reached.
                "0.0.0.0:8081": f"127.0.0.1:{ports[11]}",
                "127.0.0.1:8081": f"127.0.0.1:{ports[11]}",
                "0.0.0.0:8082": f"127.0.0.1:{ports[12]}",
                "127.0.0.1:8082": f"127.0.0.1:{ports[12]}",
                "localhost:8082": f"localhost:{ports[12]}",
                "postgres": "127.0.0.1",
                "0.0.0.0": "127.0.0.1",
                "5432": str(self.postgres.port),
                "7233": str(ports[0]),
                "8090": str(ports[9]),
                "python": sys.executable,
            }
            for service in self.compose.start_order():
                self._start(service)
                if service == "postgres" and self._pooled:
                    self._pool = PgBouncer(self.postgres, POOLED, self._workers_password())
                    self._pool.__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for service in reversed(list(self._running)):
            for process in self._running[service]:
                process.signal(signal.SIGTERM)
            for process in self._running[service]:
                process.stop(within=STOP_TIMEOUT)
        if self._pool is not None:
            self._pool.__exit__()
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

    def starter(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in a worker's container, as `docker compose exec worker` does."""
        return self.run_starter("worker", *words)

    def administrator(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run it as `docker compose run ledger-migrations`: with the URL of the ledger's owner."""
        return self.run_starter("ledger-migrations", *words)

    def run_starter(self, service: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line as in a service's container, with the container's paths."""
        here = [self.compose.translate(service, word) for word in words]
        if not self._quick:
            return self.run(service, self.compose.here["python"], "starter.py", *here)
        ended = Starter(self._environment(service), self.folder / "app")(*here)
        return subprocess.CompletedProcess(here, ended.code, ended.out, ended.err)

    def register(self, name: str) -> str:
        file = str(self.folder / f"{name}.pem")
        for words in (["keygen", file], ["add", name, "--key", f"{file}.pub", "--as", "root"]):
            made = self.administrator("principal", *words)
            assert made.returncode == 0, made.stderr
        return file

    def log(self, service: str) -> str:
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
        given = self.compose.environment(service)
        ledger = given.get("SUREHAND_DATABASE_URL", "")
        if self._pool is not None and f"//{WORKER}:" in ledger:
            given["SUREHAND_DATABASE_URL"] = self._pool.before(ledger)
        return here | given

    def _workers_password(self) -> dict[str, str]:
        url = make_url(self.compose.environment("worker")["SUREHAND_DATABASE_URL"])
        return {WORKER: str(url.password)}

    def _start(self, service: str) -> None:
        for dependency, how in self.compose.depends_on(service).items():
            if how["condition"] == "service_healthy":
                self.wait_until_healthy(dependency)
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
        number = len(self._running.setdefault(service, []))
        log, environment = self.folder / "logs" / f"{service}-{number}", self._environment(service)
        if service == "worker" and number:
            # Each container has an address of its own; here the first one's is asked.
            environment["SUREHAND_HEALTH"] = f"127.0.0.1:{free_ports(1)[0]}"
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

    def wait_until_healthy(self, service: str) -> None:
        """Wait until a service's own health check finds it well."""
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


def _go() -> dict[str, str]:
    """What Go itself needs, beside the environment that the template is rendered from."""
    return {name: os.environ[name] for name in ("PATH", "HOME")}
