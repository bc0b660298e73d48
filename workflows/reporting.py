"""What a child run shows at its parent: what it waits for, whenever that changes."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import names
from workflows.book import Book
from workflows.contracts import ENDED, ChildReport


class Reporter:
    """Tells a run's parent where it stands; a run without one tells nobody."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._told: ChildReport | None = None
        self._busy = False

    def changed(self) -> None:
        """Tell the parent, unless it knows that already; its end the parent sees by itself."""
        parent, book = self._book.request.parent, self._book
        if parent is None or self._busy or book.state in ENDED:
            return
        report = ChildReport(
            step_id=parent.step_id,
            run_id=book.request.run_id,
            state=book.state,
            waiting=book.waiting(),
            interrupts=[
                *book.interrupts.values(),
                *(
                    interrupt.model_copy(update={"interrupt_id": f"{id_}/{interrupt.interrupt_id}"})
                    for id_, below in book.reports.items()
                    for interrupt in below.interrupts
                ),
            ],
        )
        if report == self._told:
            return
        self._told, self._busy = report, True
        task = asyncio.create_task(self._send(parent.run_id, report))
        book.sending.add(task)
        task.add_done_callback(book.sending.discard)

    async def _send(self, run_id: str, report: ChildReport) -> None:
        try:
            await workflow.get_external_workflow_handle(run_id).signal(names.CHILD, report)
        except ApplicationError:
            pass  # The parent has ended: it was stopped from outside.
        finally:
            self._busy = False
        self.changed()  # What has changed meanwhile is told in one.
