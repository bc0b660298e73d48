"""Does to one run, or to its workers, what an operator does, once a step has had its effect."""

from __future__ import annotations

import contextlib

from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from cli.drill.changed_plan import HELD
from cli.drill.crew import Crew
from cli.drill.people import REASON, People
from cli.drill.played import Disturbance
from cli.drill.points import Operation
from cli.drill.resetting import reset
from cli.exits import Refused, WrongUse
from cli.tenant_client import TenantClient
from workflows.contracts import UnwindRun, Unwound
from workflows.names import UNWIND


class Operating:
    """One operation: waits for its place, and does it."""

    def __init__(
        self,
        disturbance: Disturbance,
        run_id: str,
        server: TenantClient,
        people: People,
        crew: Crew,
        release: dict[str, str],
    ) -> None:
        """Prepare an operation.

        Args:
            disturbance: What is done, and where.
            run_id: The run.
            server: Where it runs.
            people: They leave the run waiting at the place.
            crew: Its workers, of whom one is alive.
            release: The settings of workers after a deploy.
        """
        assert disturbance.operation is not None
        self._how = disturbance.operation
        self._target = disturbance.target
        self._run_id = run_id
        self._server = server
        self._people = people
        self._crew = crew
        self._release = release
        self.reached = False
        """Whether it was done."""
        self.unwound: Unwound | None = None
        self.violations: list[str] = []

    async def run(self) -> None:
        """Do it; never returns if the run does not come to the place."""
        # What is refused is not there any more, such as a run that is ending: it was not reached.
        with contextlib.suppress(Refused, WrongUse):
            if self._how.crash_point is None:
                await self._waits()
            else:
                await self._people.while_(self._crew.death())
            await self._do()
            self.reached = True

    async def _waits(self) -> None:
        """Wait until the step is done and the run waits behind it."""
        self._people.held = HELD
        await self._people.until(
            lambda view: any(one.step_id == HELD for one in view.interrupts) or None
        )

    async def _do(self) -> None:
        match self._how:
            case Operation.RESET | Operation.RESET_STEP:
                await self._reset()
            case Operation.RESET_KILLED:
                await self._reset()
                await self._crew.start()
            case Operation.TERMINATE:
                await self._server.handle(self._run_id).terminate(REASON)
                await self._unwind()
            case Operation.DEPLOY:
                await self._crew.start(changes=self._release)

    async def _reset(self) -> None:
        with self._server.translated(self._run_id):
            await reset(self._server.client, self._run_id, self._how, self._target.step)
        self._people.begin_anew()

    async def _unwind(self) -> None:
        settings = self._server.settings
        asked = UnwindRun(tenant=settings.tenant, run_id=self._run_id, actor=self._people.user)
        try:
            self.unwound = await self._server.client.execute_workflow(
                UNWIND,
                asked,
                id=f"{self._run_id}.unwind",
                task_queue=settings.task_queue,
                result_type=Unwound,
            )
        except WorkflowFailureError as error:
            cause = error.cause.__cause__ if error.cause else None
            if not isinstance(cause, ApplicationError):
                raise
            self.violations.append(f"a run that was terminated is not unwound: {cause.message}")
