"""The worker: settings -> ledger, toolbox, activities -> Temporal worker. The composition root."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # What is loaded stays. To look for garbage in it is a quarter of the start.

# isort: split
# First: it says what to do where nothing is installed.
from surehand.process.exits import end_by_signal_in_order, leave

# isort: split
import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    Interceptor,
    PollerBehaviorAutoscaling,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerConfig,
    WorkerDeploymentConfig,
    WorkflowInstance,
    WorkflowInstanceDetails,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from surehand.activities.approvals import ApprovalActivities
from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.effects.leases import keep_freeing
from surehand.activities.effects.model_turns import ModelActivities
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.engine import (
    find_asynchronous_standbys,
    require_fit,
    without_passwords,
)
from surehand.activities.ledger.core.migrate import require_head
from surehand.activities.ledger.core.presence import presence_of
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.effects.epochs import MEANING, current_epoch
from surehand.activities.maintenance import MaintenanceActivities
from surehand.activities.mcp.tools import look_for_changes, mcp_tools
from surehand.activities.notifiers import load_notifiers, where
from surehand.activities.outbox import Outbox
from surehand.activities.run_keys import LedgerKeys
from surehand.activities.runs import RunActivities
from surehand.activities.tools.toolbox import (
    load_toolbox,
    load_workflows,
    naming_what_the_sandbox_refuses,
    pass_through,
)
from surehand.activities.worker import health, telemetry
from surehand.activities.worker.context import AroundActivities, CrashInterceptor, WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.activities.worker.settings import Secrets, Settings, load_settings
from surehand.activities.worker.takeover import taking_over, worker_identity
from surehand.agents.calls import FRAMEWORKS, PASSED_THROUGH, load_agents
from surehand.agents.model_run import ModelRun
from surehand.process import VERSION
from surehand.process.ciphers import RunEncryption
from surehand.process.connect import PLUGINS, connect, find_target, load_plugins, of_worker_alone
from surehand.process.exits import ExitCode, SurehandError, WrongUse
from surehand.process.settings import OwnCell, SettingsError, read_environment
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import build_models
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.maintenance import Ping, Reconcile, Unwind
from surehand.workflows.payload_codec import data_converter
from surehand.workflows.run.agent_run import AgentRun

if TYPE_CHECKING:
    from surehand.activities.worker.traces import Traces
    from surehand.process.connect import Plugin

log = structlog.get_logger()

# Here, so that no run waits for it, and copies of a loaded worker share what is built.
build_models()

#: After a crash of the worker that held a run, another one gets it after this long (default 10 s),
#: unless that has noticed the death (``activities/worker/takeover.py``). A worker that is only busy
#: loses a run that it does not take up within this time: it has to be replayed then. It is shorter
#: than the heartbeat timeout, so that a cancel which a dead worker has missed is heard before its
#: call is made again.
STICKY_TIMEOUT: Final = timedelta(seconds=2)
#: Workflow tasks at once. The server gives each for 3 s (``workflows/ports.py``), and they share
#: one interpreter. With the SDK's 100, most tasks of a hundred runs in ``async`` took longer, were
#: done twice, and each run took twice the processor time.
WORKFLOW_TASKS: Final = 25
#: Heartbeats are sent this often at most; the default (80 % of the time-out) leaves no room for a
#: busy machine.
HEARTBEAT_THROTTLE: Final = timedelta(seconds=1)


def workflow_runner(passthrough: Sequence[str] = ()) -> SandboxedWorkflowRunner:
    """Return the sandbox of the user's workflows, and of agents; some modules pass through it.

    They are pure, and slow to import: each run would load and keep a copy of what does not.
    """
    restrictions = SandboxRestrictions.default.with_passthrough_modules(
        *("surehand.workflows", "surehand.agents"),
        *("pydantic", "pydantic_core", "annotated_types", "rfc8785"),
        *passthrough,
    )
    return SandboxedWorkflowRunner(restrictions=restrictions)


class OwnWorkflowRunner(UnsandboxedWorkflowRunner):
    """Runs our own workflows: the sandbox would check nothing of them, and costs milliseconds."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return an instance of which the SDK interrupts no thread.

        Of a workflow task that takes too long, as where the process was frozen meanwhile, it would
        throw an exception into the thread that ran the last one. That thread may be idle by then,
        or run another workflow: what it does next is lost, and a worker that stops waits for it
        without end.
        """
        instance = super().create_instance(det)
        instance.get_thread_id = lambda: None  # type: ignore[method-assign]
        return instance


def deployment_of(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return which version of the deployment a worker is; ``None``: there are no versions.

    All that begins on a version ends on it, also children and rounds of ``reconcile``. This is said
    here and not where the workflows are defined: the server takes no such word from a worker
    without a version.

    A round that moved in its middle would have to be patched like a run. Its execution has a time
    limit, so that one without workers does not keep the next ones away.
    """
    if not settings.build_id:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment_name, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def cell_of(settings: Settings) -> OwnCell | None:
    """Return the cell that a worker is of; ``None``: there is only one."""
    if not settings.cells:
        return None
    if not settings.cell:
        raise SettingsError("setting SUREHAND_CELL is missing: a worker is of one cell")
    return OwnCell(Path(settings.cells), settings.cell)


def traces_of(settings: Settings, receiver: str) -> Traces | None:
    """Return what makes traces for a receiver; ``None``: OpenTelemetry is not installed."""
    try:
        from surehand.activities.worker.traces import open_traces
    except ImportError as error:
        # No reason not to work: whoever runs this may set those variables for all programs alike.
        log.warning(
            "worker.no_traces",
            receiver=telemetry.shown(receiver),
            meaning=f"pip install 'surehand[opentelemetry]' for the worker ({error})",
        )
        return None
    return open_traces(os.environ, settings.build_id)


def list_activities(context: WorkerContext) -> list[Callable[..., Any]]:
    """Return the methods that are marked as activities."""
    tools = ToolActivities(context)
    having = (
        *(tools, ModelActivities(context, tools, FRAMEWORKS), ApprovalActivities(context)),
        *(RunActivities(context), CompensationActivities(context), MaintenanceActivities(context)),
    )
    return [
        getattr(one, name)
        for one in having
        for name, method in vars(type(one)).items()
        if hasattr(method, "__temporal_activity_definition")
    ]


class _BuildName(SimplePlugin):
    """Names the build, if neither the settings nor another plugin do.

    Without a name the SDK reads the code of all 1,200 loaded modules, for a hash of it.
    """

    def __init__(self) -> None:
        super().__init__("surehand.build")

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        config = super().configure_worker(config)
        if not (config.get("deployment_config") or config.get("build_id")):
            config["build_id"] = f"surehand-{VERSION}"
        return config


def make_worker(
    client: Client,
    settings: Settings,
    context: WorkerContext,
    plugins: Sequence[Plugin] = (),
    interceptors: Sequence[Interceptor] = (),
) -> Worker:
    """Return a Temporal worker with all workflows, the user's included, and their activities."""
    own = load_workflows(settings.workflow_modules)
    load_agents(settings.agent_modules)
    passthrough = pass_through(settings.sandbox_passthrough)
    runner = workflow_runner([*passthrough, *(PASSED_THROUGH if settings.agent_modules else ())])
    with naming_what_the_sandbox_refuses(own):
        worker = Worker(
            client,
            plugins=[*of_worker_alone(plugins), _BuildName()],
            task_queue=settings.task_queue,
            workflows=[AgentRun, ModelRun, Ping, Reconcile, Unwind, *own],
            activities=list_activities(context),
            interceptors=[
                AroundActivities(context.ledger, cell_of(settings)),
                *([CrashInterceptor(context.crash)] if context.crash.point else ()),
                *interceptors,
            ],
            workflow_runner=runner,
            unsandboxed_workflow_runner=OwnWorkflowRunner(),
            max_concurrent_workflow_tasks=WORKFLOW_TASKS,
            max_cached_workflows=settings.max_cached_workflows,
            sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
            default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
            graceful_shutdown_timeout=settings.graceful_shutdown,
            workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
            activity_task_poller_behavior=PollerBehaviorAutoscaling(),
            deployment_config=deployment_of(settings),
        )
    taken = worker.config(active_config=True)["workflow_runner"]
    if isinstance(taken, SandboxedWorkflowRunner) and not (
        runner.restrictions.passthrough_modules <= taken.restrictions.passthrough_modules
    ):
        raise WrongUse(
            f"a Temporal plugin ({PLUGINS}) puts another sandbox in the place of ours: have"
            " it add to the one that it is given, by dataclasses.replace"
        )
    return worker


async def serve(settings: Settings, *, check_only: bool) -> None:
    """Load everything, say what was loaded, and work until SIGTERM or SIGINT."""
    cell = cell_of(settings)
    toolbox = load_toolbox(settings.tool_modules, mcp_tools(settings.mcp))
    load_agents(settings.agent_modules)
    plugins = load_plugins(settings.worker_plugins)
    receiver = telemetry.find_receiver(os.environ)
    traces = traces_of(settings, receiver) if receiver and not check_only else None
    pass_through(settings.sandbox_passthrough)
    crash = Crash.parse(settings.crash_at, settings.crash_once, signal.Signals[settings.crash_by])
    if settings.crash_at and settings.decisions == "signed":
        raise SettingsError(
            f"setting SUREHAND_CRASH_AT has the worker kill itself at {settings.crash_at}, which is"
            " for drills: it is refused where SUREHAND_DECISIONS=signed; unset it"
        )
    # A check runs beside a worker, which has the address.
    runtime = telemetry.core_runtime("" if check_only else settings.metrics)
    metrics = telemetry.Metrics(runtime.metric_meter)
    notifiers = load_notifiers(settings)
    async with open_ledger(settings.database_url, metrics, settings.notify) as ledger:
        require_fit(ledger.engine, fsync_off=settings.fsync_off == "allow")
        require_head(ledger.engine)
        inline = settings.largest_inline
        target = find_target(read_environment())
        keys = LedgerKeys.of(settings.key_encryption_keys.get_secret_value(), lambda: ledger)
        ledger.keys = keys
        ledger.passkey_origins = settings.passkey_origins
        artifacts = ArtifactStore(settings.artifacts, ledger, largest_inline=inline)
        encryption = None if keys is None else RunEncryption(keys)
        converter = data_converter(lambda: artifacts.blobs, waits=True, encryption=encryption)
        all_plugins = plugins if traces is None else [traces.plugin, *plugins]
        own_name = worker_identity()
        client = await connect(
            target, runtime=runtime, converter=converter, plugins=all_plugins, identity=own_name
        )
        log.info(
            "worker.loaded",
            tools=toolbox.names(),
            workflows=[class_.__name__ for class_ in load_workflows(settings.workflow_modules)],
            database=without_passwords(ledger.engine.url),
            plugins=[one.name() for one in plugins] or "none",
            task_queue=settings.task_queue,
            version=settings.build_id or "none",
            server=target.address,
            namespace=target.namespace,
            cell="none" if cell is None else cell.name,
            decisions=settings.decisions,
            encryption="off" if keys is None else f"by {keys.ring.first.id}",
            notifiers=where(notifiers) or "none",
            metrics=settings.metrics or "off",
            health=settings.health or "off",
            traces=telemetry.shown(receiver) if receiver and traces else "off",
        )
        if settings.decisions == "open":
            log.warning(
                "worker.decisions_open",
                meaning="decisions are not signed: whoever can reach the Temporal server can"
                " approve in any name; every approval is marked unverified",
            )
        undecidable = [
            name
            for name in toolbox.names()
            if (tool := toolbox.get(name)) is not None
            and tool.approval is not None
            and any(Assurance(proof).by_passkey for proof in tool.approval.proofs)
        ]
        if undecidable and not settings.passkey_origins:
            log.warning(
                "worker.no_passkeys",
                setting="SUREHAND_PASSKEY_ORIGINS",
                tools=undecidable,
                meaning="it is empty, so no passkey counts: where these tools ask for one, nobody"
                " can approve their calls",
            )
        if settings.crash_at:
            log.warning(
                "worker.crashes",
                setting="SUREHAND_CRASH_AT",
                meaning=f"it kills itself at {settings.crash_at}: for drills only",
            )
        if not settings.tool_modules and not settings.mcp:
            log.warning(
                "worker.no_tools",
                setting="SUREHAND_TOOL_MODULES",
                meaning="it names no module: no tool is loaded, so every plan is refused",
            )
        # Before anything is claimed: whoever starts it may still think better of it.
        losing = await asyncio.to_thread(find_asynchronous_standbys, ledger.engine)
        if losing is not None:
            log.warning("worker.standby_asynchronous", meaning=losing)
        epoch = await ledger.transact(DEFAULT_TENANT, current_epoch)
        if epoch is not None:
            log.warning("worker.restored", epoch=epoch.number, meaning=MEANING)
        for problem in await look_for_changes(settings.mcp) if settings.mcp else ():
            log.warning("worker.mcp_changed", meaning=f"a call of it is refused: {problem}")
        if check_only:
            return
        context = WorkerContext.of(
            settings,
            ledger=ledger,
            toolbox=toolbox,
            artifacts=artifacts,
            crash=crash,
            metrics=metrics,
            spans=None if traces is None else traces.spans,
        )
        context.watchdog.start()
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        told = list[str]()

        def stop(number: signal.Signals) -> None:
            told.append(number.name)
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        secrets = Secrets.of(settings)
        readiness = health.Readiness.of(ledger, client, secrets.hide)
        outbox = Outbox(
            ledger,
            notifiers,
            metrics=metrics,
            secrets=secrets,
            approvals_url=settings.approvals_url,
        )
        with outbox:
            own = [] if traces is None else [traces.runs]
            presence = presence_of(ledger.engine, client.namespace, client.identity)
            async with (
                health.answering(settings.health, health.health_paths(readiness)),
                taking_over(client, presence) as in_hand,
                make_worker(client, settings, context, all_plugins, [in_hand, *own]),
            ):
                log.info("worker.ready", task_queue=settings.task_queue)
                beside = asyncio.gather(
                    keep_freeing(ledger, stopping),
                    health.keep_track(client, ledger, metrics, stopping),
                    outbox.run(stopping),
                )
                await stopping.wait()
                readiness.stopping = True
                graceful = settings.graceful_shutdown.total_seconds()
                log.info("worker.stopping", graceful_seconds=graceful)
            await beside
        if traces is not None:
            await traces.close()
        log.info("worker.stopped", signal=told[0])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="worker.py", description="Runs agent runs and their tools. Settings: SUREHAND_*."
    )
    parser.add_argument("--check", action="store_true", help="load everything, say so, and exit")
    arguments = parser.parse_args(argv)
    # Told to end while it loads: the first process of a container would not hear it otherwise.
    end_by_signal_in_order()
    try:
        settings = load_settings()
        secrets = Secrets.of(settings)
        telemetry.configure_logging(settings.log_format, settings.log_level, secrets.hide)
        asyncio.run(serve(settings, check_only=arguments.check))
    except SurehandError as error:
        print(f"surehand: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        pass  # before it could claim anything
    return ExitCode.DONE


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    # Temporal's threads can abort the interpreter while it ends; see process/exits.py.
    leave(main())
