"""The worker: settings -> ledger, toolbox, activities -> Temporal worker. The composition root."""

from __future__ import annotations

from surehand.process.ending import leave  # first: it says what to do where nothing is installed

# isort: split
import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import PollerBehaviorAutoscaling, Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from surehand.activities.approvals.gate import ApprovalActivities
from surehand.activities.artifacts import ArtifactsMisconfigured, ArtifactStore
from surehand.activities.effects.batches import BatchActivities
from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.effects.resource_leases import keep_freeing
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.engine import require_fit
from surehand.activities.ledger.core.migrate import DatabaseBehind, require_head
from surehand.activities.ledger.core.store import LedgerUnavailable, open_ledger
from surehand.activities.maintenance import MaintenanceActivities
from surehand.activities.notify.notifiers import (
    NotifiersMisconfigured,
    load_notifiers,
    where,
)
from surehand.activities.notify.outbox import Outbox
from surehand.activities.runs.child_runs import ChildActivities
from surehand.activities.runs.lifecycle import RunActivities
from surehand.activities.runs.steering import PlanActivities, SteeringActivities
from surehand.activities.runs.values import ContentActivities, RecordingActivities
from surehand.activities.tools.toolbox import ToolboxError, load_toolbox
from surehand.activities.tools.workflow_modules import (
    WorkflowModulesError,
    load_workflows,
)
from surehand.activities.worker.alive import KeepAlive
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash, CrashInterceptor
from surehand.activities.worker.guard import LedgerGuard
from surehand.activities.worker.metrics import Metrics
from surehand.activities.worker.secrets import Secrets
from surehand.activities.worker.settings import (
    Settings,
    SettingsError,
    load_settings,
)
from surehand.activities.worker.telemetry import (
    ContextInterceptor,
    MetricsAddressError,
    configure_logging,
    core_runtime,
)
from surehand.activities.worker.tenant_discovery import keep_learning
from surehand.process.connect import connect, find_target
from surehand.process.exits import ExitCode, SurehandError
from surehand.process.settings import read_environment
from surehand.workflows.maintenance import Ping, Reconcile, Unwind
from surehand.workflows.payload_codec import data_converter
from surehand.workflows.run.agent_run import AgentRun
from surehand.workflows.run.model_run import ModelRun

log = structlog.get_logger()

#: After a crash of the worker that held a run, another one gets it after this long (default 10 s).
STICKY_TIMEOUT: Final = timedelta(seconds=1)
#: Heartbeats are sent this often at most; the default (80 % of the time-out) leaves no room for a
#: busy machine.
HEARTBEAT_THROTTLE: Final = timedelta(seconds=1)


def workflow_runner() -> SandboxedWorkflowRunner:
    """Return the sandbox of the workflows; what is passed through is pure, and slow to import.

    Our own room, too: each run would load and keep a copy of what is not passed through.
    """
    restrictions = SandboxRestrictions.default.with_passthrough_modules(
        "surehand.workflows", "pydantic", "pydantic_core", "annotated_types", "rfc8785"
    )
    return SandboxedWorkflowRunner(restrictions=restrictions)


def deployment_of(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return which version of the deployment a worker is; ``None``: there are no versions.

    All that begins on a version ends on it, also children and rounds of ``reconcile``. This is said
    here and not where the workflows are defined: the server takes no such word from a worker
    without a version.
    """
    if not settings.build_id:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment_name, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def make_worker(client: Client, settings: Settings, context: WorkerContext) -> Worker:
    """Return a Temporal worker with all workflows, the user's included, and their activities."""
    tools = ToolActivities(context)
    batches = BatchActivities(context, tools)
    approvals = ApprovalActivities(context)
    runs = RunActivities(context)
    children = ChildActivities(context)
    steering = SteeringActivities(context)
    plans = PlanActivities(context)
    compensation = CompensationActivities(context)
    maintenance = MaintenanceActivities(context)
    recording = RecordingActivities(context)
    contents = ContentActivities(context)
    own = load_workflows(settings.workflow_modules)
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[AgentRun, ModelRun, Ping, Reconcile, Unwind, *own],
        activities=[
            tools.describe_tools,
            tools.execute_tool,
            batches.run_batch,
            compensation.compensate,
            approvals.request_approval,
            approvals.verify_decision,
            approvals.close_approval,
            runs.open_run,
            runs.close_run,
            children.look_at_child,
            runs.find_interventions,
            compensation.find_remaining,
            runs.settle_intervention,
            steering.steer,
            steering.record_interrupt,
            recording.record_value,
            contents.read_artifact,
            plans.evaluate,
            plans.record_refusal,
            plans.amend_run,
            maintenance.reconcile,
            maintenance.begin_unwind,
        ],
        interceptors=[
            ContextInterceptor(),
            KeepAlive(),
            CrashInterceptor(context.crash),
            LedgerGuard(context.ledger),
        ],
        workflow_runner=workflow_runner(),
        max_cached_workflows=settings.max_cached_workflows,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=settings.graceful_shutdown,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
        deployment_config=deployment_of(settings),
    )


async def serve(settings: Settings, *, check_only: bool) -> None:
    """Load everything, say what was loaded, and work until SIGTERM or SIGINT."""
    toolbox = load_toolbox(settings.tool_modules)
    crash = Crash.parse(settings.crash_at, settings.crash_once)
    if settings.crash_at and settings.decisions == "signed":
        raise SettingsError(
            f"setting SUREHAND_CRASH_AT has the worker kill itself at {settings.crash_at}, which is"
            " for drills: it is refused where SUREHAND_DECISIONS=signed; unset it"
        )
    # A check runs beside a worker, which has the address.
    runtime = core_runtime("" if check_only else settings.metrics)
    metrics = Metrics(runtime.metric_meter)
    notifiers = load_notifiers(settings)
    async with open_ledger(settings.database_url, metrics, settings.notify) as ledger:
        require_fit(ledger.engine, fsync_off=settings.fsync_off == "allow")
        require_head(ledger.engine)
        inline = settings.largest_inline
        artifacts = ArtifactStore(settings.artifacts, ledger, largest_inline=inline)
        target = find_target(read_environment())
        converter = data_converter(lambda: artifacts.blobs, waits=True)
        client = await connect(target, runtime=runtime, converter=converter)
        log.info(
            "worker.loaded",
            tools=toolbox.names(),
            workflows=[class_.__name__ for class_ in load_workflows(settings.workflow_modules)],
            database=ledger.engine.url.render_as_string(hide_password=True),
            task_queue=settings.task_queue,
            version=settings.build_id or "none",
            server=target.address,
            namespace=target.namespace,
            decisions=settings.decisions,
            notifiers=where(notifiers) or "none",
            metrics=settings.metrics or "off",
        )
        if settings.decisions == "open":
            log.warning(
                "worker.decisions_open",
                meaning="decisions are not signed: whoever can reach the Temporal server can"
                " approve in any name; every approval is marked unverified",
            )
        if settings.crash_at:
            log.warning(
                "worker.crashes",
                setting="SUREHAND_CRASH_AT",
                meaning=f"it kills itself at {settings.crash_at}: for drills only",
            )
        if not settings.tool_modules:
            log.warning(
                "worker.no_tools",
                setting="SUREHAND_TOOL_MODULES",
                meaning="it names no module: no tool is loaded, so every plan is refused",
            )
        if check_only:
            return
        context = WorkerContext.of(
            settings,
            ledger=ledger,
            toolbox=toolbox,
            artifacts=artifacts,
            crash=crash,
            metrics=metrics,
        )
        context.watchdog.start()
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        with Outbox(ledger, notifiers, metrics=metrics, secrets=Secrets.of(settings)) as outbox:
            async with make_worker(client, settings, context):
                log.info("worker.ready", task_queue=settings.task_queue)
                beside = asyncio.gather(
                    keep_freeing(ledger, settings.resource_free_every, stopping),
                    keep_learning(client, ledger, stopping),
                    outbox.run(stopping),
                )
                await stopping.wait()
                graceful = settings.graceful_shutdown.total_seconds()
                log.info("worker.stopping", graceful_seconds=graceful)
            await beside
        log.info("worker.stopped")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker and return its exit code.

    Args:
        argv: The command line without the program's name; ``None``: this process's own.
    """
    parser = argparse.ArgumentParser(
        prog="worker.py", description="Runs agent runs and their tools. Settings: SUREHAND_*."
    )
    parser.add_argument("--check", action="store_true", help="load everything, say so, and exit")
    arguments = parser.parse_args(argv)
    try:
        settings = load_settings()
        secrets = Secrets.of(settings)
        configure_logging(settings.log_format, settings.log_level, secrets.hide)
        asyncio.run(serve(settings, check_only=arguments.check))
    except (
        SettingsError,
        ToolboxError,
        WorkflowModulesError,
        ArtifactsMisconfigured,
        MetricsAddressError,
        NotifiersMisconfigured,
    ) as error:
        print(f"surehand: {error}", file=sys.stderr)
        return ExitCode.WRONG_USE
    except (LedgerUnavailable, DatabaseBehind) as error:
        print(f"surehand: {error}", file=sys.stderr)
        return ExitCode.NOT_REACHABLE
    except SurehandError as error:
        print(f"surehand: {error}", file=sys.stderr)
        return error.code
    return ExitCode.DONE


if __name__ == "__main__":
    # Temporal's threads can abort the interpreter while it ends; see process/ending.py.
    leave(main())
