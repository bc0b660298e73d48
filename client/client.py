"""The client: starts runs, finds what waits for people, and gives the way to each run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import temporalio.client
from pydantic import BaseModel, ConfigDict, JsonValue
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import TLSConfig

from surehand.client import messages
from surehand.client.connection import Connection, first_events, understood
from surehand.client.messages import Seen
from surehand.client.outcome import CUT_OFF_BY_SERVER, FOR_PEOPLE, run_result, state_of
from surehand.client.plan_file import PlanSource, plan_from
from surehand.client.run import Run
from surehand.process import exits
from surehand.process.connect import client_converter, connect, find_target, of_client
from surehand.process.settings import ClientSettings, client_settings, read_environment
from surehand.workflows.contracts.approvals import ApprovalRequest, HeldApproval, Verdict
from surehand.workflows.contracts.base import RunState, Waiting, WaitKind
from surehand.workflows.contracts.runs import Linked, RunView, StartRun
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.names import WORKFLOW
from surehand.workflows.plan.plan import Durability
from surehand.workflows.ports import OPEN_ITEMS, RUN_STATE, TENANT, fair, move_timeout

#: What tells the server that a run waits for a person.
WAITS_FOR_PEOPLE: Final = (
    f"({OPEN_ITEMS.name} > 0 OR {RUN_STATE.name} IN ({', '.join(map(repr, map(str, FOR_PEOPLE)))}))"
    " AND ExecutionStatus = 'Running'"
)
#: What a run waits for that is neither decided on nor answered.
_OTHER_KINDS: Final = {kind for kind in WaitKind if kind.needs_human} - {
    WaitKind.APPROVAL,
    WaitKind.QUESTION,
}

#: Runs asked at the same time; each query wakes a worker.
_AT_ONCE: Final = 10
#: How long one of many may take to answer: the others shall be seen soon.
ONE_OF_MANY: Final = timedelta(seconds=5)


#: Memo field with a plan's name and goal; what the Web UI calls a workflow cannot be listed.
PLAN_MEMO: Final = "plan"
#: In the place of a plan's name that is encrypted, and cannot be decrypted here.
UNREAD: Final = "(cannot be read)"


class ListedRun(BaseModel):
    """A run as the server lists it; needs no worker.

    Example:
        >>> [listed] = await client.list_runs()
        >>> listed.run_id == run.run_id, listed.plan.partition(":")[0]
        (True, 'refund')
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    state: str
    """One of ``RunState``, or ``terminated`` or ``timed_out``."""
    open_items: int
    """How many things wait for people."""
    started_at: datetime
    ended_at: datetime | None
    plan: str
    task_queue: str


class SilentRun(ListedRun):
    """A run that does not answer; usually no worker is there."""

    reason: str


class PendingQuestion(Interrupt):
    """A question that waits for an answer."""

    run_id: str


class PendingHeld(HeldApproval):
    """A decision that has come before its request."""

    run_id: str


def others_of(view: RunView) -> list[Waiting]:
    """Return the doubts and pauses of a run that wait for a person, without its child runs'."""
    result = view.result
    if result.state is RunState.NEEDS_INTERVENTION and not result.waiting_for:
        lost = result.error or "it does not go on"
        return [
            Waiting(
                kind=WaitKind.INTERVENTION, id="", step_id="", question=lost, run_id=result.run_id
            )
        ]
    return [
        item.model_copy(update={"run_id": result.run_id})
        for item in result.waiting_for
        if item.kind in _OTHER_KINDS and item.run_id is None
    ]


@dataclass(frozen=True)
class Pending:
    """What waits for somebody to decide, to answer, to settle a doubt or to end a pause.

    Example:
        >>> waiting = await client.pending()
        >>> [request.tool for request in waiting.approvals]
        ['payments.refund']
    """

    views: list[RunView]
    """The runs that wait, in full."""
    silent: list[SilentRun]
    """Runs that wait, too, and cannot say for what: no worker answers for them."""

    @property
    def approvals(self) -> list[ApprovalRequest]:
        """Return the requests that wait for a decision."""
        return [request for view in self.views for request in view.pending]

    @property
    def held(self) -> list[PendingHeld]:
        """Return decisions that have come before their requests."""
        return [
            PendingHeld(**one.model_dump(), run_id=view.result.run_id)
            for view in self.views
            for one in view.held
        ]

    @property
    def questions(self) -> list[PendingQuestion]:
        """Return the questions that wait for an answer."""
        return [
            PendingQuestion(**one.model_dump(), run_id=view.result.run_id)
            for view in self.views
            for one in view.interrupts
        ]

    @property
    def others(self) -> list[Waiting]:
        """Return the doubts and the pauses that wait for a person, each with its run."""
        return [item for view in self.views for item in others_of(view)]


async def list_run(run: WorkflowExecution) -> ListedRun:
    state, plan = state_of(run), await run.memo_value(PLAN_MEMO, "")
    # A run that the server has ended could not take its own number back.
    cut_off = state in CUT_OFF_BY_SERVER
    return ListedRun(
        run_id=run.id,
        state=state,
        open_items=0 if cut_off else run.typed_search_attributes.get(OPEN_ITEMS, 0),
        started_at=run.start_time,
        ended_at=run.close_time,
        plan=plan if isinstance(plan, str) else UNREAD,
        task_queue=run.task_queue,
    )


async def look_at_runs(connection: Connection, runs: Sequence[WorkflowExecution]) -> Pending:
    """Ask the runs themselves: the server's list may lag behind them by a moment."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def look(run: WorkflowExecution) -> RunView | SilentRun | None:
        async with places:
            try:
                return await connection.view(run.id, ONE_OF_MANY)
            except exits.NoSuchRun:
                return None
            except exits.SurehandError as error:
                if isinstance(error, exits.NotReachable) and not isinstance(error, exits.NoWorker):
                    raise  # the server itself: nobody else will answer, either
                return SilentRun(**dict(await list_run(run)), reason=str(error))

    found = await asyncio.gather(*(look(run) for run in runs))
    return Pending(
        views=[item for item in found if isinstance(item, RunView)],
        silent=[item for item in found if isinstance(item, SilentRun)],
    )


async def launch_run(connection: Connection, request: StartRun) -> bool:
    """Start a run; return ``False`` if the same run exists already."""
    if await _start_workflow(connection, request, WorkflowIDReusePolicy.REJECT_DUPLICATE):
        return True
    # Seen from the server first: a workflow of that id may be no run of this tenant.
    existing = await connection.describe(request.run_id)
    # A start that was refused has left nothing under its id, so a corrected one may have it. Should
    # another starter be quicker, the ledger still takes an id only once.
    refused = existing.status is WorkflowExecutionStatus.FAILED and await _was_refused(
        connection, request.run_id
    )
    again = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
    if refused and await _start_workflow(connection, request, again):
        return True
    first = await _first_request(connection, request.run_id)
    if _wanted_of(first) != _wanted_of(request):
        part = "plan or input" if first.plan != request.plan else "user or durability"
        raise exits.WrongUse(
            f"run {request.run_id} exists already, with another {part}; nothing was started:"
            " choose another run id"
        )
    return False


def _wanted_of(request: StartRun) -> dict[str, Any]:
    """Return what people ask for with a start; when it continues as new is the worker's affair."""
    return {**request.content(), "continue_after": None}


async def _start_workflow(
    connection: Connection, request: StartRun, reuse: WorkflowIDReusePolicy
) -> bool:
    summary = f"{request.plan.name}: {request.plan.goal}".rstrip(": ")
    try:
        with connection.translated(request.run_id):
            await connection.client.start_workflow(
                request.plan.code or WORKFLOW,
                request,
                id=request.run_id,
                task_queue=connection.settings.task_queue,
                id_reuse_policy=reuse,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                task_timeout=move_timeout(len(request.plan.steps)),
                priority=fair(request.tenant, priority=request.plan.priority),
                memo={PLAN_MEMO: summary},
                static_summary=summary,
                search_attributes=TypedSearchAttributes(
                    [
                        SearchAttributePair(RUN_STATE, RunState.RUNNING.value),
                        SearchAttributePair(TENANT, request.tenant),
                        SearchAttributePair(OPEN_ITEMS, 0),
                    ]
                ),
            )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def _was_refused(connection: Connection, run_id: str) -> bool:
    """Say whether the existing run's start was refused before anything was recorded."""
    try:
        with connection.translated(run_id):
            await run_result(connection, run_id)
    except (exits.PlanRefused, exits.StartNotTaken):
        return True
    except exits.SurehandError:
        return False
    return False


async def _first_request(connection: Connection, run_id: str) -> StartRun:
    with connection.translated(run_id):
        async for event in first_events(connection.client, run_id):
            started = event.workflow_execution_started_event_attributes
            [value] = await connection.client.data_converter.decode(started.input.payloads)
            return understood(value, StartRun, f"what run {run_id} was started with")
    raise exits.WrongUse(f"run {run_id} has no history any more: choose another run id")


@dataclass(frozen=True)
class Client:
    """The way to the runs of one tenant, as one user; needs no ledger and no tools.

    Its settings are the command line's: environment and ``.env``. Each can be given instead. It
    holds one connection, which may be shared by all coroutines of a loop.

    Example:
        >>> client = await Client.connect(user="uma")
        >>> run = await client.start("refund.yaml", input={"order_id": "order-7"})
        >>> (await run.wait()).state
        <RunState.COMPLETED: 'completed'>
    """

    connection: Connection
    """What it speaks to the server by; :meth:`connect` makes it."""
    signed_only: bool = False
    """Whether the workers take only what is signed."""

    @classmethod
    async def connect(
        cls,
        address: str | None = None,
        *,
        namespace: str | None = None,
        api_key: str | None = None,
        tls: bool | TLSConfig | None = None,
        temporal: temporalio.client.Client | None = None,
        tenant: str | None = None,
        user: str | None = None,
        key: str | Path | None = None,
        task_queue: str | None = None,
        artifacts: str | None = None,
        ui_url: str | None = None,
    ) -> Self:
        """Return a connected client; what is not given is taken from the settings.

        Args:
            address: The Temporal server, ``host:port`` (``TEMPORAL_ADDRESS``).
            namespace: Its namespace (``TEMPORAL_NAMESPACE``).
            api_key: For the server (``TEMPORAL_API_KEY``).
            tls: How to speak to it (``TEMPORAL_TLS_*``).
            temporal: A connection that there is already, in the place of these four; payloads are
                converted as workers do it, not by its own converter.
            tenant: Whose runs (``SUREHAND_TENANT``).
            user: Who starts, decides and steers (``SUREHAND_USER``).
            key: The file of the user's private key, to sign with (``SUREHAND_KEY``).
            task_queue: Where runs are started (``SUREHAND_TASK_QUEUE``).
            artifacts: Where workers keep large values (``SUREHAND_ARTIFACTS``).
            ui_url: Of the Web UI, for links (``TEMPORAL_UI_URL``).

        Example:
            >>> ann = await Client.connect(user="ann", tenant="acme")
            >>> (await ann.pending()).approvals
            []
        """
        environment = read_environment(tenant)
        settings = client_settings(
            environment,
            tenant=tenant,
            user=user,
            ui_url=ui_url,
            key=None if key is None else Path(key),
        )
        if task_queue is not None:
            settings = settings.model_copy(update={"task_queue": task_queue})
        target = find_target(environment)
        if artifacts is not None:
            target = replace(target, artifacts=artifacts)
        if temporal is not None:
            host = temporal.service_client.config.target_host
            target = replace(target, address=host, namespace=temporal.namespace)
            config: dict[str, Any] = {**temporal.config()}
            converter = config["data_converter"] = client_converter(target)
            config["plugins"] = of_client(config["plugins"], converter)
            connected = temporalio.client.Client(**config)
        else:
            options = target.options.copy()
            if api_key is not None:
                options["api_key"] = api_key
            if tls is not None:
                options["tls"] = tls
            target = replace(
                target,
                address=address or target.address,
                namespace=namespace or target.namespace,
                options=options,
            )
            connected = await connect(target)
        return cls(
            Connection(connected, target, settings),
            signed_only=environment.get("SUREHAND_DECISIONS") == "signed",
        )

    def acting_as(self, user: str, *, key: str | Path | None = None) -> Self:
        """Return a client of another user on the same connection.

        Args:
            key: The file of that user's private key, to sign with; without it nothing is signed.

        Example:
            >>> ann = client.acting_as("ann")
            >>> ann.settings.user, client.settings.user
            ('ann', 'uma')
        """
        file = None if key is None else Path(key)
        checked = client_settings({}, tenant=self.settings.tenant, user=user, key=file)
        settings = self.settings.model_copy(update={"user": checked.user, "key": checked.key})
        connection = Connection(self.connection.client, self.connection.target, settings)
        return replace(self, connection=connection)

    @property
    def settings(self) -> ClientSettings:
        """Return whom the client acts for, and where runs are started."""
        return self.connection.settings

    async def start(
        self,
        plan: PlanSource,
        *,
        run_id: str | None = None,
        input: Mapping[str, JsonValue] | None = None,
        for_user: str | None = None,
        durability: Durability | None = None,
        linked: Linked | None = None,
    ) -> Run:
        """Start a run of a plan; signed, if there is a key.

        The server has the run then, and keeps it until a worker is there. Whether the plan fits the
        worker's tools is found out by the run: :meth:`Run.taken_up` and :meth:`Run.wait` tell.

        Args:
            plan: The plan, its document, or its file.
            run_id: The run's name, never used before; ``None`` makes one up. Started twice under
                one name, the same plan is one run: so a start whose answer was lost is repeated.
            input: Inputs, beside those of the plan or in their place.
            for_user: Whom the run acts for; ``None``: whoever starts it.
            durability: When progress is written to history; ``None``: as the plan says.
            linked: Another run, and outputs of it that are facts to this one.

        Raises:
            PlanRefused: The plan is not valid: each problem with its place.
            WrongUse: There is a run of that name with another plan or input.

        Example:
            >>> run = await client.start("refund.yaml", run_id="refund-7", for_user="uma")
            >>> again = await client.start("refund.yaml", run_id="refund-7", for_user="uma")
            >>> run.is_new, again.is_new
            (True, False)
        """
        parsed = plan_from(plan, input)
        chosen = messages.choose_run_id(
            self.settings.tenant, run_id or messages.make_run_name(parsed.name)
        )
        settings = self.settings
        request = StartRun(
            tenant=settings.tenant,
            user=settings.user if for_user is None else for_user,
            started_by=settings.user,
            run_id=chosen,
            plan=parsed,
            durability=durability,
            linked=linked,
        )
        if (problem := request.problem()) is not None:
            raise exits.WrongUse(problem)
        if settings.key is not None:
            request = messages.sign_start(
                request, messages.read_key(settings.key), int(time.time())
            )
        elif self.signed_only:
            raise exits.WrongUse(
                "only signed starts count here (SUREHAND_DECISIONS=signed): name your private key"
                " (`--key`, `key=` or SUREHAND_KEY)"
            )
        return Run(self.connection, chosen, is_new=await launch_run(self.connection, request))

    def run(self, run_id: str) -> Run:
        """Return the way to a run, by its name or its full id; the server is not asked for it.

        Example:
            >>> await client.run("refund-7").state()
            'waiting_approval'
        """
        return Run(self.connection, messages.find_run_id(self.settings.tenant, run_id))

    async def list_runs(self, *, state: str | None = None, limit: int = 50) -> list[ListedRun]:
        """Return runs as the server lists them; needs no worker.

        Those that go on come first, the one started last at the top; then those that have ended,
        the one that ended last at the top.

        Args:
            state: Only these: one of ``RunState``, or ``terminated`` or ``timed_out``.
            limit: At most so many.

        Raises:
            WrongUse: There is no such state.

        Example:
            >>> [listed.run_id == run.run_id for listed in await client.list_runs()]
            [True]
        """
        # Of one id there may be several: starts that were refused, and the one that was not.
        found: dict[str, WorkflowExecution] = {}
        async for run in self.connection.listed(_condition_of_state(state)):
            found.setdefault(run.id, run)
            if len(found) >= limit:
                break
        return [await list_run(run) for run in found.values()]

    async def pending(self, *, limit: int = 50) -> Pending:
        """Return everything that waits for a person.

        Args:
            limit: At most so many runs, those started last.

        Example:
            >>> waiting = await client.pending()
            >>> for request in waiting.approvals:
            ...     verdict = await client.approve(request, reason="order was returned")
        """
        waiting = [run async for run in self.connection.listed(WAITS_FOR_PEOPLE, limit)]
        return await look_at_runs(self.connection, waiting)

    async def approve(self, request: Seen, *, reason: str = "", leave: bool = False) -> Verdict:
        """Approve a call with exactly the params that were seen, as :meth:`Run.approve` does.

        Example:
            >>> seen = SeenRequest(form["approval_id"], form["params_hash"])
            >>> (await client.approve(seen)).code
            <VerdictCode.ACCEPTED: 'accepted'>
        """
        return await self._run_of(request).approve(request, reason=reason, leave=leave)

    async def reject(self, request: Seen, *, reason: str = "", leave: bool = False) -> Verdict:
        """Reject a call, as :meth:`Run.reject` does.

        Example:
            >>> [request] = (await client.pending()).approvals
            >>> (await client.reject(request, reason="wrong amount")).state
            <ApprovalState.REJECTED: 'rejected'>
        """
        return await self._run_of(request).reject(request, reason=reason, leave=leave)

    async def edit(
        self, request: Seen, params: Mapping[str, Any], *, reason: str = "", leave: bool = False
    ) -> Verdict:
        """Ask for other params, as :meth:`Run.edit` does.

        Example:
            >>> [request] = (await client.pending()).approvals
            >>> verdict = await client.edit(request, {**request.params, "amount": "50.00"})
        """
        return await self._run_of(request).edit(request, params, reason=reason, leave=leave)

    def _run_of(self, request: Seen) -> Run:
        run_id, _ = messages.find_approval(self.settings.tenant, request.approval_id)
        return Run(self.connection, run_id)


#: What runs can be listed by: their states, and what the server did to them.
STATES: Final = (*RunState, *sorted(CUT_OFF_BY_SERVER))


def _condition_of_state(state: str | None) -> str:
    match state:
        case None:
            return ""
        case "terminated":
            return "ExecutionStatus = 'Terminated'"
        case "timed_out":
            return "ExecutionStatus = 'TimedOut'"
        case RunState.FAILED | RunState.CANCELLED:
            status = "Failed" if state == RunState.FAILED else "Canceled"
            return f"({RUN_STATE.name} = '{state}' OR ExecutionStatus = '{status}')"
        case RunState.COMPLETED:
            return f"{RUN_STATE.name} = '{state}'"
        case _ if state in set(RunState):
            return f"{RUN_STATE.name} = '{state}' AND ExecutionStatus = 'Running'"
        case _:
            raise exits.WrongUse(f"no run is ever {state!r}: write one of {', '.join(STATES)}")
