"""Content from outside that a run has read."""

from __future__ import annotations

from surehand.workflows.contracts.base import Message


class ForeignContent(Message):
    """What has brought a run content from outside, which a stranger may have written.

    Example:
        >>> ForeignContent(tool="mail.read", step_id="inbox").as_text()
        'mail.read (step inbox)'
    """

    tool: str
    step_id: str
    run_id: str | None = None
    """The run whose step it is, where it is another one: a child run, a parent, one taken over."""

    def as_text(self) -> str:
        """Return where it comes from, as one clause."""
        of = f" of run {self.run_id}" if self.run_id else ""
        return f"{self.tool} (step {self.step_id}{of})"

    def of(self, run_id: str) -> ForeignContent:
        """Return the same as another run has it, to which it has come from this one."""
        return self if self.run_id else self.model_copy(update={"run_id": run_id})


def foreign_text(found: tuple[ForeignContent, ...]) -> str:
    """Return all of it as one clause; empty: there is none."""
    return ", ".join(content.as_text() for content in found)
