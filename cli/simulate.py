"""``simulate``: what a plan would do from a moment of a run, with recorded outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surehand.cli import options
from surehand.cli.ledger_door import ledger_of, open_artifacts, read_settings, translated
from surehand.cli.options import Caller
from surehand.cli.printer import Lines, Reply, Table
from surehand.cli.shapes import SimulatedStep, Simulation
from surehand.cli.simulation import CannotHold, CheckedCall, Known, Simulated, simulate
from surehand.cli.tools import named_tools, problems_of
from surehand.client.plan_file import Draft
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.tools import Effect, ToolSpec
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import ApprovalPolicy, Needs, combine

if TYPE_CHECKING:
    from surehand.activities.artifacts import ArtifactStore
    from surehand.activities.effects.prepare import PreparedCall
    from surehand.activities.ledger.core.store import Ledger
    from surehand.activities.ledger.history.recorded import Recording
    from surehand.activities.tools.toolbox import Toolbox
    from surehand.process.ciphers import RememberedKeys


class WorkerChecks:
    """The worker's own evaluator, its tools' models, policies and keys."""

    def __init__(
        self,
        run_id: str,
        recorded: Mapping[str, ToolSpec],
        toolbox: Toolbox | None,
        keys: RememberedKeys | None,
    ) -> None:
        """Look at calls.

        Args:
            run_id: The run whose calls these would be.
            recorded: Its tools as recorded with its plan.
            toolbox: The tools that are loaded here; ``None``: none are.
            keys: The keys of runs; ``None``: nothing is sealed.
        """
        from surehand.activities.hashes import Hashes

        self._hashes = Hashes(keys)
        self._run_id = run_id
        self._specs = recorded
        self._toolbox = toolbox

    def holds(self, expression: str, values: Mapping[str, Any], *, foreign: bool) -> bool:
        """Return whether a condition is true.

        Raises:
            CannotHold: It cannot be evaluated.
        """
        from surehand.activities.expressions import RuleBroken, condition_holds, of_run

        try:
            return condition_holds(expression, {**values, **of_run(foreign)})
        except RuleBroken as error:
            raise CannotHold(str(error)) from error

    def brings_foreign(self, tool: str) -> bool:
        """Return whether what a tool returns is content from outside: as recorded, or as loaded."""
        loaded = None if self._toolbox is None else self._toolbox.get(tool)
        return any(one is not None and one.foreign for one in (self._specs.get(tool), loaded))

    def call(
        self,
        step_id: str,
        tool: str,
        params: Any,
        policies: Sequence[ApprovalPolicy],
        *,
        foreign: bool,
    ) -> CheckedCall:
        """Return what the worker would make of a call before it makes it."""
        recorded = self._specs.get(tool)
        asking = [*policies, *_own(recorded)]
        loaded = None if self._toolbox is None else self._toolbox.get(tool)
        if loaded is None:
            return _without_params(params, asking)
        asking += _own(loaded)
        if params is None:
            return _without_params(params, asking)
        from temporalio.exceptions import ApplicationError

        from surehand.activities.effects.prepare import prepare_params

        try:
            prepared = prepare_params(loaded, self._hashes, params, self._run_id, step_id)
            needs = _needs(asking, prepared, foreign=foreign)
        except (ApplicationError, CannotHold) as error:
            return CheckedCall(params, problem=getattr(error, "message", str(error)))
        named = loaded.key is not None and loaded.effect is Effect.WRITE
        return CheckedCall(
            params=prepared.plain,
            params_hash=prepared.params_hash,
            approval="no" if needs is None else "yes",
            approval_text=_as_text(needs),
            key=prepared.key if named else None,
            identities=self._hashes.of_identity(
                tenant_of_run(self._run_id), loaded.name, prepared.plain
            ),
        )


def _own(tool: Any) -> Iterable[ApprovalPolicy]:
    return () if tool is None or tool.approval is None else (tool.approval,)


def _needs(
    policies: Sequence[ApprovalPolicy], prepared: PreparedCall, *, foreign: bool
) -> Needs | None:
    from surehand.activities.expressions import RuleBroken, holds

    def fits(expression: str) -> bool:
        return holds(expression, prepared.params, foreign=foreign)

    try:
        return combine(policies, fits)
    except RuleBroken as error:
        raise CannotHold(f"{prepared.tool.name}: {error}") from error


def _without_params(params: Any, policies: Sequence[ApprovalPolicy]) -> CheckedCall:
    """Return what holds of a call whatever its params are."""
    always = combine((one for one in policies if not one.rules), lambda _: False)
    by_rules = any(one.rules for one in policies)
    return CheckedCall(
        params=params,
        approval="yes" if always else "by its rules" if by_rules else "no",
        approval_text=_as_text(always),
    )


def _as_text(needs: Needs | None) -> str:
    return "" if needs is None else " and ".join(one.as_text() for one in needs.requirements)


async def simulate_run(
    caller: options.Onlooker,
    run: options.Run,
    seq: Annotated[
        int,
        typer.Option(
            "--from", metavar="SEQ", min=1, help="The event after which the plan goes on."
        ),
    ],
    changes: options.Changes = None,
) -> Reply:
    """Say what a plan would do from an event of a run, from its records: nothing is called.

    Example: python starter.py simulate refund-1 --from 4 --set input.shelf=B
    """
    from surehand.activities.ledger.history.rebuilding import NoSuchEvent
    from surehand.activities.ledger.history.recorded import recording_of

    run_id = caller.run_id(run)
    toolbox, settings = named_tools(caller), read_settings()
    async with ledger_of(settings) as ledger:
        try:
            recording = await ledger.transact(caller.tenant, recording_of, run_id, seq)
        except NoSuchEvent as error:
            raise WrongUse(str(error)) from error
        plan = plan_to_simulate(recording, changes, toolbox)
        checks = WorkerChecks(run_id, recording.tools, toolbox, ledger.keys)
        store = open_artifacts(settings, ledger)
        with translated():
            found = await _simulated(caller, ledger, store, recording, plan, checks)
    shown = Simulation(
        run_id=run_id,
        seq=seq,
        plan=plan.name,
        plan_version=recording.plan_version,
        changed=changes or [],
        tools_loaded=toolbox is not None,
        steps=found.steps,
        ends=found.ends,
    )
    return Reply(shown, _lines(shown))


def plan_to_simulate(
    recording: Recording, changes: list[str] | None, toolbox: Toolbox | None
) -> Plan:
    """Return the plan of that moment, with ``--set`` changes.

    Raises:
        WrongUse: Code makes the run's steps, or a change does not fit.
    """
    if recording.plan.code is not None:
        raise WrongUse(
            f"run {recording.run_id} is made by code ({recording.plan.code}): only that knows"
            " what it would do"
        )
    if not changes:
        return recording.plan
    plan = Draft.of(recording.plan).amending(recording.plan, changes)
    problems = problems_of(toolbox, plan)
    if problems:
        text = "; ".join(f"{one.where}: {one.reason}" for one in problems)
        raise WrongUse(f"--set: the plan does not fit the tools then: {text}")
    return plan


async def _simulated(
    caller: Caller,
    ledger: Ledger,
    store: ArtifactStore,
    recording: Recording,
    plan: Plan,
    checks: WorkerChecks,
) -> Simulated:
    """Simulate, look up what turns out to matter, and simulate again until nothing does."""
    from surehand.activities.ledger.history.recorded import KeyEntry, key_entries

    tenant = caller.tenant
    keys: dict[tuple[str, str], KeyEntry | None] = {}
    contents: dict[str, object] = {}
    while True:
        known = Known(keys, contents)
        found = await ledger.with_keys(partial(simulate, recording, plan, checks, known))
        if not found.keys and not found.artifacts:
            return found
        keys |= {
            **dict.fromkeys(found.keys),
            **await ledger.transact(tenant, key_entries, found.keys),
        }
        contents |= await store.read_all(tenant, recording.run_id, found.artifacts)


def _lines(shown: Simulation) -> Lines:
    yield (
        f"Plan {shown.plan}, version {shown.plan_version}, from event {shown.seq} of {shown.run_id}"
    )
    if not shown.tools_loaded:
        yield "No tools are loaded (SUREHAND_TOOL_MODULES): rules, hashes and keys are not known"
    rows = [[one.id, one.does, one.outcome, _why(one)] for one in shown.steps]
    yield Table(("step", "does", "outcome", "why"), rows)
    if shown.ends is not None:
        yield f"It would end there: {shown.ends}"


def _why(step: SimulatedStep) -> str:
    parts = [step.why] if step.why else []
    if step.depends_on:
        parts.append(f"depends on {', '.join(step.depends_on)}")
    if step.approval not in (None, "no"):
        needs = step.approval_text or step.approval
        parts.append(f"needs {needs}" if step.approval == "yes" else "may need an approval")
    if step.looked_at:
        parts.append(f"a human looks at it {' and '.join(step.looked_at)}")
    return "; ".join(parts)
