"""The activity that judges what steers a run."""

from __future__ import annotations

from temporalio import activity

from activities.attempt import Resources
from activities.ledger import interrupts, steering
from workflows.contracts import Recorded, RecordInterrupt, Steer, Steered


class SteeringActivities:
    """``steer`` and ``record_interrupt``."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="steer")
    async def steer(self, asked: Steer) -> Steered:
        """Say whether something that was sent to a run counts; the same delivery is judged once."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            judged = await steering.judge(tx, asked, self._resources.assurance)
        return Steered(
            code=judged.code,
            message=judged.message,
            verified=judged.verified,
            head=tx.heads[asked.run_id],
        )

    @activity.defn(name="record_interrupt")
    async def record_interrupt(self, asked: RecordInterrupt) -> Recorded:
        """Record that a question was asked, or that nobody has answered it in time."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            await interrupts.record(tx, asked)
        return Recorded(head=tx.heads[asked.run_id])
