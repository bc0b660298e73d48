"""``demo``: a refund survives ``kill -9`` of its worker without paying twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from surehand.cli import options
from surehand.cli.printer import Lines, Printer, Reply, Shape, Styled
from surehand.cli.render import effect_table, request_details, result_lines
from surehand.client.client import Client
from surehand.client.connection import Connection
from surehand.client.run import Run
from surehand.process import PACKAGE, ROOT
from surehand.process.children import Child, clean_environment, python
from surehand.process.connect import connect, find_target
from surehand.process.dev_server import DevServer, find_cli
from surehand.process.exits import ExitCode, Left, SurehandError, end_by_signal_in_order
from surehand.process.settings import client_settings
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.runs import RunResult, RunView, StepView


class DemoReport(Shape):
    """``demo``: what the shop itself counted."""

    ok: bool
    run_id: str
    state: str
    refunds: int
    mails: int
    worker_killed: bool
    decided_by: str


@dataclass(frozen=True)
class DemoEnvironment:
    """Everything that runs, and the variables by which a worker finds it."""

    folder: Path
    web_ui: str
    variables: dict[str, str]

    def worker(self, name: str, *, crash_at: str = "") -> Child:
        """Start a worker; with ``crash_at`` it kills itself there."""
        armed = {"SUREHAND_CRASH_AT": crash_at} if crash_at else {}
        command, log = python("surehand.worker"), self.folder / f"{name}.log"
        return Child(command, environment=self.variables | armed, log=log)

    def shop_counts(self) -> dict[str, int]:
        # No proxy: the shop is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.variables['SHOP_URL']}/admin/counts", timeout=10) as response:
            counts: dict[str, int] = json.load(response)
        return counts


@contextmanager
def set_up(say: Callable[[str], None]) -> Iterator[DemoEnvironment]:
    """Start server, ledger and shop; stop them all and remove the folder on every way out.

    The folder stays when the block fails: its logs say why.
    """
    folder = Path(tempfile.mkdtemp(prefix="surehand-demo-"))
    with ExitStack() as running:
        try:
            yield _start_all(folder, running, say)
        except Exception:
            say(f"What happened is in the logs in {folder}")
            raise
        except BaseException:  # Ctrl-C: nobody will read them
            running.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder, ignore_errors=True)


def _start_all(folder: Path, running: ExitStack, say: Callable[[str], None]) -> DemoEnvironment:
    cli = find_cli(log=say)
    # The folder is also where they run, so that no .env of the user's is read.
    environment = clean_environment(
        {
            "SUREHAND_DATABASE_URL": f"sqlite:///{folder / 'ledger.db'}",
            "PYTHONPATH": str(ROOT),
        }
    )
    say("Starting the example shop, a ledger (SQLite) and an embedded Temporal server")
    serve = python("surehand.examples.shop", "--port", "0", "--db", str(folder / "shop.db"))
    shop = running.enter_context(Child(serve, environment=environment, log=folder / "shop.log"))
    migrate = python("surehand.cli.migrate")
    migration = running.enter_context(
        Child(migrate, environment=environment, log=folder / "migrate.log")
    )
    server = DevServer.start(cli=cli, log_file=folder / "temporal.log")
    running.callback(server.stop)
    [shop_url] = shop.wait_for(lambda: re.findall(r"listening on (http://\S+)\n", shop.output()))
    migration.wait_done()
    return DemoEnvironment(
        folder=folder,
        web_ui=server.ui_url or "",
        variables=environment
        | {
            "TEMPORAL_ADDRESS": server.address,
            "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
            "SUREHAND_ARTIFACTS": str(folder / "artifacts"),
            "SHOP_URL": shop_url,
        },
    )


RUN: Final = "refund-demo"
APPROVER: Final = "demo-approver"
#: The worst moment to die: the shop has paid, and nobody but the shop knows.
CRASH_AT: Final = "payments.refund:after_call"

#: Each part takes a few seconds, also on a slow machine; after this long something is broken.
PART_LIMIT: Final = timedelta(seconds=90)
_ANSWERS: Final = {"y": True, "yes": True, "n": False, "no": False}


@dataclass(eq=False)
class DemoScript:
    """One showing of the demo; it watches its run."""

    printer: Printer
    environment: DemoEnvironment
    approver: str | None
    """Who is asked at the terminal, if anybody is there."""
    _part: int = 0
    _shown: dict[str, StepState] = field(default_factory=dict)
    _worker: Child | None = None

    async def play(self) -> DemoReport:
        client = await self._make_client()
        with self.environment.worker("worker-1", crash_at=CRASH_AT) as first:
            self._headline(f"Worker 1 runs (process {first.pid}), prepared for the worst")
            self._say("It will kill itself with SIGKILL right after the shop has paid the refund,")
            self._say("before it can write down that it has.")
            self._headline(f"Run {RUN} starts: examples/refund.yaml")
            run = await client.start(PACKAGE / "examples" / "refund.yaml", run_id=RUN)
            self._say(f"Web UI: {run.web_ui}")
            await self._wait_for_run(run, first)
            self._headline("The run waits for an approval of exactly this call")
            killed = await self._have_decided(client, run)
            if killed:
                await self._see_it_die(first)
        with self.environment.worker("worker-2") as second:
            if killed:
                self._headline(f"Worker 2 runs (process {second.pid}) and takes over")
                self._say("It does not pay again: it asks the shop what became of the first call.")
            else:
                self._headline(
                    f"Worker 2 runs (process {second.pid}); worker 1 did not have to die"
                )
            result = await self._wait_for_run(run, second)
        self._show_end(result)
        counts = self.environment.shop_counts()
        refunds, mails = counts.get("refunds", 0), counts.get("mails", 0)
        expected = 1 if killed else 0
        return DemoReport(
            ok=refunds == mails == expected,
            run_id=RUN,
            state=result.state,
            refunds=refunds,
            mails=mails,
            worker_killed=killed,
            decided_by=self.approver or APPROVER,
        )

    async def _make_client(self) -> Client:
        variables = self.environment.variables
        target = find_target(variables)
        settings = client_settings(
            variables, tenant="default", user="demo", ui_url=self.environment.web_ui
        )
        return Client(Connection(await connect(target, quiet=True), target, settings))

    async def _have_decided(self, client: Client, run: Run) -> bool:
        """Have the call approved or rejected; says whether it was approved."""
        [request] = (await run.view()).pending
        for line in request_details(request):
            self._say(line)
        approver, reason = client.acting_as(self.approver or APPROVER), ""
        if self.approver is None:
            reason = "the demo's own approver"
            self._say(f"There is no terminal to ask at: {APPROVER!r} approves it.")
        elif not await self._ask():
            await approver.reject(request)
            return False
        # The worker may die of the approved call before it can answer; the decision counts then.
        with contextlib.suppress(Left):
            await approver.approve(request, reason=reason, leave=True)
        return True

    async def _ask(self) -> bool:
        """Ask at the terminal; read so that Ctrl-C still ends the demo."""
        question = "   Approve this call with these params? [y/n] "
        while True:
            print(question, end="", flush=True)
            line = await _typed_line()
            answer = _ANSWERS.get(line.strip().lower())
            if answer is not None:
                return answer
            if not line.endswith("\n"):  # nobody will say more
                print()
                self._say("Ctrl-D: no answer is no approval, so it is rejected.")
                return False
            self._say("Please answer yes or no.")

    async def _see_it_die(self, worker: Child) -> None:
        try:
            await asyncio.to_thread(worker.wait, PART_LIMIT.total_seconds())
        except subprocess.TimeoutExpired as error:
            raise SurehandError("worker 1 should have killed itself and did not") from error
        if worker.returncode != -signal.SIGKILL:
            raise SurehandError(f"worker 1 ended with {worker.returncode}: {worker.last_line()}")
        self._headline("Worker 1 is dead: SIGKILL in the middle of the refund")
        self._say(f"The shop has paid: {self.environment.shop_counts().get('refunds', 0)} refund.")
        for entry in await self._read_entries():
            self._say(f"The ledger knows no more than: {entry}.")

    async def _read_entries(self) -> list[str]:
        from surehand.activities.ledger.core.store import open_ledger
        from surehand.activities.ledger.history.reads import effects_of

        url = self.environment.variables["SUREHAND_DATABASE_URL"]
        async with open_ledger(url) as ledger:
            rows = await ledger.transact("default", effects_of, RUN)
        return [f"{row['tool']} {row['key']} is {row['state']}" for row in rows]

    def _show_end(self, result: RunResult) -> None:
        self._headline("How it ended")
        self.printer.lines(result_lines(result.model_copy(update={"effects": []})))
        self._headline("The ledger: one entry for each effect, whoever asks again")
        self.printer.lines([effect_table(result.effects) if result.effects else "   none"])
        self._headline("The shop's own count of what it has done")
        counts = [
            f"{kind}: {count}" for kind, count in self.environment.shop_counts().items() if count
        ]
        for line in counts or ["none"]:
            self._say(line)

    async def _wait_for_run(self, run: Run, worker: Child) -> RunResult:
        self._worker = worker
        try:
            result = await run.wait(timeout=PART_LIMIT, or_human=True, watch=self)
        except TimeoutError as error:
            at = next(reversed(self._shown), "the start of the run")
            raise SurehandError(f"the demo is stuck after {at}") from error
        self._show_steps(result.steps)
        return result

    def show(self, view: RunView) -> None:
        self._show_steps(view.result.steps)

    def note(self, text: str) -> None:
        """Look why nothing moves: while a worker starts, it is nothing to tell."""
        if self._worker is not None and not self._worker.running:
            raise SurehandError(f"a worker ended by itself: {self._worker.last_line()}")

    def _show_steps(self, steps: Sequence[StepView]) -> None:
        """Say where steps have come to; what a look sees by chance (`running`) is left out."""
        for step in steps:
            if step.state in (StepState.PENDING, StepState.RUNNING):
                return
            if self._shown.get(step.id) != step.state:
                self._shown[step.id] = step.state
                self._say(f"{step.id}: {step.state}")

    def _headline(self, text: str) -> None:
        self._part += 1
        self.printer.say()
        self.printer.say(f"{self._part}. {text}", "bold")

    def _say(self, text: str) -> None:
        self.printer.say(f"   {text}")


async def _typed_line() -> str:
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()


def demo(caller: options.Anybody) -> Reply:
    """Watch a refund survive the death of its worker; needs no keys and no Docker.

    Example: surehand demo
    """
    end_by_signal_in_order()
    printer = caller.printer
    with set_up(printer.say) as environment:
        approver = caller.settings.user if caller.attended else None
        report = asyncio.run(DemoScript(printer, environment, approver).play())
        printer.lines(_verdict_lines(report))
        if caller.attended:
            # Ctrl-C and Ctrl-D end a look around as well as Enter.
            with contextlib.suppress(EOFError, KeyboardInterrupt):
                input(f"\nLook around at {environment.web_ui} ; Enter stops everything. ")
    return Reply(report, (), ExitCode.DONE if report.ok else ExitCode.FAILED)


def _verdict_lines(report: DemoReport) -> Lines:
    if report.worker_killed:
        told = "the worker was killed right after the refund call, another one took over"
    else:
        told = "the refund was not approved"
    sign = "OK" if report.ok else "NOT OK"
    yield ""
    yield Styled(
        f"{sign}: {told}. Refunds paid: {report.refunds}. Mails sent: {report.mails}.",
        "bold green" if report.ok else "bold red",
    )
