"""The client: starts runs, finds what waits for people, and gives the way to each run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self

import temporalio.client
from pydantic import BaseModel, ConfigDict, JsonValue
from temporalio.client import WorkflowExecution
from temporalio.service import TLSConfig

from surehand.client.connection import Connection
from surehand.client.launch import launch, start_request
from surehand.client.messages import Seen, chosen_run_id, find_approval, find_run_id, new_run_name
from surehand.client.outcome import state_of
from surehand.client.plan_file import PlanSource, plan_from
from surehand.client.run import Run
from surehand.process.connect import client_converter, connect, find_target, of_client
from surehand.process.exits import (
    OF_STATE,
    ExitCode,
    NoSuchRun,
    NotReachable,
    NoWorker,
    SurehandError,
)
from surehand.process.settings import ClientSettings, client_settings, read_environment
from surehand.workflows.contracts.approvals import ApprovalRequest, HeldApproval, Verdict
from surehand.workflows.contracts.base import RunState, Waiting, WaitKind
from surehand.workflows.contracts.runs import Linked, RunView
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.names import OPEN_ITEMS, RUN_STATE
from surehand.workflows.plan.plan import Durability

#: States in which only a person moves a run on; an event comes from a system.
_FOR_PEOPLE: Final = ", ".join(
    f"'{state}'"
    for state, code in OF_STATE.items()
    if code is ExitCode.HUMAN_NEEDED and state is not RunState.WAITING_EVENT
)
#: What tells the server that a run waits for a person.
WAITS_FOR_PEOPLE: Final = (
    f"({OPEN_ITEMS.name} > 0 OR {RUN_STATE.name} IN ({_FOR_PEOPLE}))"
    " AND ExecutionStatus = 'Running'"
)
#: What a run waits for that is neither decided on nor answered.
_OTHER_KINDS: Final = frozenset(
    {
        WaitKind.INTERVENTION,
        WaitKind.PERMISSION,
        WaitKind.PAUSE,
        WaitKind.BUDGET,
        WaitKind.FAILURE,
    }
)

#: Runs asked at the same time; each query wakes a worker.
_AT_ONCE: Final = 10
#: How long one of many may take to answer: the others shall be seen soon.
ONE_OF_MANY: Final = timedelta(seconds=5)


class SilentRun(BaseModel):
    """A run that does not answer, as the server knows it; usually no worker is there."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    task_queue: str
    state: str
    open_items: int
    reason: str


class PendingQuestion(Interrupt):
    """A question that waits for an answer."""

    run_id: str


class PendingHeld(HeldApproval):
    """A decision that has come before its request."""

    run_id: str


@dataclass(frozen=True)
class Looked:
    """What several runs say, and which of them say nothing."""

    views: list[RunView]
    silent: list[SilentRun]


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


async def look_at(connection: Connection, runs: Sequence[WorkflowExecution]) -> Looked:
    """Ask the runs themselves: the server's list may lag behind them by a moment."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def look(run: WorkflowExecution) -> RunView | SilentRun | None:
        async with places:
            try:
                return await connection.view(run.id, ONE_OF_MANY)
            except NoSuchRun:
                return None
            except SurehandError as error:
                if isinstance(error, NotReachable) and not isinstance(error, NoWorker):
                    raise  # the server itself: nobody else will answer, either
                return _silent(run, error)

    found = await asyncio.gather(*(look(run) for run in runs))
    return Looked(
        views=[item for item in found if isinstance(item, RunView)],
        silent=[item for item in found if isinstance(item, SilentRun)],
    )


def _silent(run: WorkflowExecution, error: SurehandError) -> SilentRun:
    return SilentRun(
        run_id=run.id,
        task_queue=run.task_queue,
        state=state_of(run),
        open_items=run.typed_search_attributes.get(OPEN_ITEMS, 0),
        reason=str(error),
    )


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


class Client:
    """The way to the runs of one tenant, as one user; needs no ledger and no tools.

    Its settings are the command line's: environment, ``.env`` and ``surehand.toml``. Each can be
    given instead. It holds one connection, which may be shared by all coroutines of a loop.

    Example:
        >>> client = await Client.connect(user="uma")
        >>> run = await client.start("refund.yaml", input={"order_id": "order-7"})
        >>> (await run.wait()).state
        <RunState.COMPLETED: 'completed'>
    """

    def __init__(self, connection: Connection, *, signed_only: bool = False) -> None:
        """Make a client of a connection; :meth:`connect` is the usual way.

        Args:
            connection: The connection, with the settings.
            signed_only: Whether only signed starts count.
        """
        self._connection = connection
        self._signed_only = signed_only

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

        Raises:
            WrongUse: A setting cannot be used.
            NotReachable: No server answers.

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
            user: Who starts, decides and steers.
            key: The file of that user's private key, to sign with; without it nothing is signed.

        Raises:
            WrongUse: The user's name cannot be used.

        Example:
            >>> ann = client.acting_as("ann")
            >>> ann.settings.user, client.settings.user
            ('ann', 'uma')
        """
        file = None if key is None else Path(key)
        checked = client_settings({}, tenant=self.settings.tenant, user=user, key=file)
        settings = self.settings.model_copy(update={"user": checked.user, "key": checked.key})
        connection = Connection(self._connection.client, self._connection.target, settings)
        return type(self)(connection, signed_only=self._signed_only)

    @property
    def connection(self) -> Connection:
        """Return the connection."""
        return self._connection

    @property
    def settings(self) -> ClientSettings:
        """Return whom the client acts for, and where runs are started."""
        return self._connection.settings

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
            WrongUse: There is a run of that name with another plan or input; or a name or the key
                cannot be used.
            NotReachable: The server does not answer.

        Example:
            >>> run = await client.start("refund.yaml", run_id="refund-7", for_user="uma")
            >>> again = await client.start("refund.yaml", run_id="refund-7", for_user="uma")
            >>> run.is_new, again.is_new
            (True, False)
        """
        parsed = plan_from(plan, input)
        chosen = chosen_run_id(self.settings.tenant, run_id or new_run_name(parsed.name))
        request = start_request(
            self.settings,
            for_user=for_user,
            signed_only=self._signed_only,
            run_id=chosen,
            plan=parsed,
            durability=durability,
            linked=linked,
        )
        return Run(self._connection, chosen, is_new=await launch(self._connection, request))

    def run(self, run_id: str) -> Run:
        """Return the way to a run; nobody is asked whether there is one.

        Args:
            run_id: Its name, or its full id.

        Raises:
            WrongUse: It has not the form of a run id.
            NoSuchRun: It is another tenant's.

        Example:
            >>> await client.run("refund-7").state()
            'waiting_approval'
        """
        return Run(self._connection, find_run_id(self.settings.tenant, run_id))

    async def pending(self, *, limit: int = 50) -> Pending:
        """Return everything that waits for a person.

        Args:
            limit: At most so many runs, those started last.

        Raises:
            NotReachable: The server does not answer.

        Example:
            >>> waiting = await client.pending()
            >>> for request in waiting.approvals:
            ...     verdict = await client.approve(request, reason="order was returned")
        """
        waiting = [run async for run in self._connection.listed(WAITS_FOR_PEOPLE, limit)]
        looked = await look_at(self._connection, waiting)
        return Pending(looked.views, looked.silent)

    async def approve(self, request: Seen, *, reason: str = "", leave: bool = False) -> Verdict:
        """Approve a call with exactly the params that were seen, as :meth:`Run.approve` does.

        Raises:
            DecisionRefused: It does not count; ``verdict.code`` says why.

        Example:
            >>> seen = SeenRequest(form["approval_id"], form["params_hash"])
            >>> (await client.approve(seen)).code
            <VerdictCode.ACCEPTED: 'accepted'>
        """
        return await self._run_of(request).approve(request, reason=reason, leave=leave)

    async def reject(self, request: Seen, *, reason: str = "", leave: bool = False) -> Verdict:
        """Reject a call, as :meth:`Run.reject` does.

        Raises:
            DecisionRefused: It does not count; ``verdict.code`` says why.

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

        Raises:
            DecisionRefused: It does not count; ``verdict.code`` says why.

        Example:
            >>> [request] = (await client.pending()).approvals
            >>> verdict = await client.edit(request, {**request.params, "amount": "50.00"})
        """
        return await self._run_of(request).edit(request, params, reason=reason, leave=leave)

    def _run_of(self, request: Seen) -> Run:
        run_id, _ = find_approval(self.settings.tenant, request.approval_id)
        return Run(self._connection, run_id)
