"""``demo``: a refund survives ``kill -9`` of its worker without paying twice."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

from cli import options
from cli.caller import Caller, perform_sync
from cli.exits import ExitCode
from cli.process import end_by_signal_in_order
from cli.shapes import DemoReport
from cli.stage import set_up
from cli.story import Story

EXAMPLE: Final = "Example: python starter.py demo"


def demo(json_output: options.Json = False) -> int:
    """Watch a refund survive the death of its worker; needs no keys and no Docker."""

    def verb(caller: Caller) -> int:
        end_by_signal_in_order()
        printer = caller.printer
        attended = printer.attended and sys.stdin.isatty() and not json_output
        with set_up(printer.say) as stage:
            story = Story(printer, stage, approver=caller.settings.user if attended else None)
            report = asyncio.run(story.tell())
            _verdict(caller, report)
            if attended:
                # Ctrl-C and Ctrl-D end a look around as well as Enter.
                with contextlib.suppress(EOFError, KeyboardInterrupt):
                    input(f"\nLook around at {stage.web_ui} ; Enter stops everything. ")
        return ExitCode.DONE if report.ok else ExitCode.FAILED

    return perform_sync(verb, json_output=json_output)


def _verdict(caller: Caller, report: DemoReport) -> None:
    printer = caller.printer
    if report.worker_killed:
        told = "the worker was killed right after the refund call, another one took over"
    else:
        told = "the refund was not approved"
    sign = "OK" if report.ok else "NOT OK"
    printer.say()
    printer.say(
        f"{sign}: {told}. Refunds paid: {report.refunds}. Mails sent: {report.mails}.",
        "bold green" if report.ok else "bold red",
    )
    if printer.json_output:
        printer.document(report)
