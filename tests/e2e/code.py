"""Runs whose steps are made by code, as it should not be written, too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from surehand import CodeRun, RunResult, StartRun, StepFailed, StepMaker, provider_names


async def refund(steps: StepMaker, **more: Any) -> Any:
    given = {"order_id": steps.input["order_id"], "amount": "59.90", "currency": "EUR"}
    return await steps.call("payments.refund", given, id="refund", **more)


@workflow.defn
class Raises(CodeRun):
    """Gives up after its refund."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        await refund(steps)
        match steps.input["by"]:
            case "schema":
                await steps.ask("How many?", {"type": "nombre"})
            case "output":
                return {"id": 2**60}
            case "failure":
                raise ApplicationError("the customer is a fraud", type="Fraud", non_retryable=True)
            case "time-out":
                async with asyncio.timeout(0.1):
                    await asyncio.Event().wait()
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._fails())
                    group.create_task(self._fails())

    async def _fails(self) -> None:
        raise StepFailed("enough")


@workflow.defn
class Relying(CodeRun):
    """Reads an order, once somebody has approved it, after a refund that another run has made."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> str:
        order = {"order_id": steps.input["order_id"]}
        given = {**order, "amount": "120.00", "currency": "EUR"}
        await steps.call("payments.refund", given, id="refund")
        await steps.call("orders.read", order, id="after", approval="required")
        return "all is well"


@workflow.defn
class Careless(CodeRun):
    """Goes on whatever happens."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> str:
        try:
            await steps.call("orders.read", {"order_id": "order-404"}, on_failure="pause")
        except StepFailed:
            await steps.call("mail.send", {"order_id": "x"})
        return "all is well"


@workflow.defn
class Forgetful(CodeRun):
    """Waits for nothing that it begins."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> str:
        read = steps.call("orders.read", {"order_id": steps.input["other"]})
        self._begun = [asyncio.ensure_future(one) for one in (refund(steps), read)]
        await asyncio.sleep(0)
        return "done"


@workflow.defn
class Literal(CodeRun):
    """Hands on text that looks like a reference, and calls one tool twice."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        count = await steps.record(lambda: counted(str(steps.input["count"])))
        order = {"order_id": steps.input["order_id"]}
        both = await asyncio.gather(*(steps.call("orders.read", order) for _ in range(2)))
        mail = {**order, "kind": "refund_notice", "to": "a@b.example", "body": "${order.paid}"}
        await steps.call("mail.send", {**mail, "subject": "${input.secret}"})
        event = await steps.wait("returned", str(steps.input["order_id"]))
        return {"count": count, "same": both[0] == both[1], "event": event}


def counted(path: str) -> int:
    """Return how often this was called."""
    with Path(path).open("a") as file:
        file.write("x")
    return Path(path).stat().st_size


@workflow.defn
class Lasting(CodeRun):
    """Restocks and refunds order after order, and begins a new execution after each of them."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        done: Any = steps.carried or []
        orders: Any = steps.input["orders"]
        for order_id in orders[len(done) :]:
            if order_id == "busy":
                # Not awaited: this is no point at which anything can be handed on.
                self._begun = asyncio.ensure_future(steps.ask("Well?"))
                await asyncio.sleep(0)
                await steps.continue_as_new(done)
            given = {"order_id": order_id, "amount": "59.90", "currency": "EUR"}
            await steps.call("payments.refund", given)
            if "again" in steps.input:
                await steps.call("orders.read", {"order_id": order_id}, id="same")
            await steps.continue_as_new([*done, order_id])
        if steps.input.get("gives_up"):
            raise StepFailed("enough")
        return done


@workflow.defn
class Hasty(CodeRun):
    """Begins a step beside the one that continues as new."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        order = {"order_id": steps.input["order_id"]}
        # Not awaited: what it begins, it begins while the other one waits for a quiet moment.
        await steps.call("orders.read", order)
        later = asyncio.ensure_future(self.later(steps, order))
        await asyncio.gather(later, steps.continue_as_new("again"))

    async def later(self, steps: StepMaker, order: Any) -> None:
        await asyncio.sleep(0)
        await steps.ask("Well?")


@workflow.defn
class Trying(CodeRun):
    """Makes the calls that it is given, whatever becomes of each."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        wanted: Any = steps.input["calls"]
        return [await self.tried(steps, *one) for one in wanted]

    async def tried(self, steps: StepMaker, tool: str, params: dict[str, Any]) -> Any:
        try:
            return await steps.call(tool, params)
        except StepFailed as failed:
            return {"failed": failed.reason}


@workflow.defn
class Offering(CodeRun):
    """Tells of its tools, and calls one by the name that a model has for it."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        return await self.drive_code(self.steps)

    async def steps(self, steps: StepMaker) -> Any:
        listed = [str(name) for name in steps.input.get("tools", ["orders.*", "payments.refund"])]
        both = await asyncio.gather(*(steps.tools(*listed) for _ in range(2)))
        assert both[0] == both[1] == await steps.tools(*listed)
        names = provider_names(one.name for one in both[0])
        meant = {theirs: tool for tool, theirs in names.items()}
        given = {"order_id": steps.input["order_id"], "amount": "59.90", "currency": "EUR"}
        await steps.call(meant["payments_refund"], given)
        return [one.model_dump(mode="json") for one in both[0]]
