"""A run's page in Temporal's Web UI, used as an approver uses it: by what is to be read there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from playwright.async_api import FrameLocator, Locator, Page, expect

from surehand.workflows.contracts.steering import Verb

#: The verdict on a decision is an activity; its row in the list of events.
VERIFIED: Final = "verify a decision"
#: Whether the last block to copy is seen without scrolling in the pane.
SEEN: Final = """
    [...document.querySelectorAll('pre')].at(-1).getBoundingClientRect().bottom <= innerHeight
"""


@dataclass(frozen=True)
class RunPage:
    """The page of one run, with its current details."""

    page: Page

    @classmethod
    async def of(cls, page: Page, run_id: str) -> RunPage:
        await page.goto(f"/namespaces/default/workflows/{run_id}")
        await page.get_by_test_id("user-metadata-tab").click()
        return cls(page)

    @property
    def details(self) -> FrameLocator:
        """The current details, which the Web UI renders in a frame."""
        return self.page.frame_locator('iframe[title="output"]')

    async def shows(self, *texts: str) -> None:
        """Wait until the current details show each of these texts."""
        for text in texts:
            shown = expect(self.details.locator("main"))
            try:
                await shown.to_contain_text(text)
            except AssertionError:
                # The verification was shown while it was under way: the page asks once more.
                await self.page.keyboard.press("r")
                await shown.to_contain_text(text)

    async def cuts_off_nothing(self) -> None:
        """Wait until the pane is high enough for all that the current details have to say."""
        await self.details.locator("pre").last.wait_for()
        pane = await self.page.locator('iframe[title="output"]').element_handle()
        frame = await pane.content_frame()
        assert frame is not None
        await frame.wait_for_function(SEEN)

    async def block(self, starts: str) -> str:
        """Return the text of the one block to copy that starts so."""
        blocks = await self.details.locator("pre").all_inner_texts()
        [found] = [block for block in blocks if block.startswith(starts)]
        return found

    async def decide(self, decision: str) -> None:
        """Paste a decision into the dialog for signals and send it."""
        await self._visible(self.page.get_by_role("button", name="More Actions")).click()
        await self._visible(self.page.get_by_test_id("signal-button")).click()
        dialog = self._visible(self.page.get_by_test_id("signal-confirmation-modal"))
        await dialog.get_by_test_id("signal-select-button").click()
        await dialog.get_by_role("option", name=Verb.DECIDE.value).click()
        await dialog.get_by_role("textbox", disabled=False).fill(decision)
        # By key: the editor lays one line out on several when it is left, and the button moves.
        await dialog.get_by_test_id("confirm-modal-button").press("Enter")
        await expect(self.page.get_by_text("Workflow signaled.")).to_be_visible()

    async def refreshed(self) -> None:
        """Press the key that the page names for freshness, once a decision has been judged."""
        await expect(self.page.get_by_text(VERIFIED)).to_be_visible()
        await self.page.keyboard.press("r")

    async def is_in(self, status: str) -> None:
        """Wait until the page's heading shows a status of Temporal's."""
        name = self.page.get_by_test_id("workflow-id-heading")
        header = self.page.locator("header", has=name)
        await expect(self._visible(header.get_by_text(status, exact=True))).to_be_visible()

    def _visible(self, locator: Locator) -> Locator:
        # The page holds some things twice, for wide and for narrow windows.
        return locator.filter(visible=True)
