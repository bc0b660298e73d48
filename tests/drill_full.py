"""``make drill-full``: the whole interrupt matrix of the shop's plans, then a soak.

First a drill for each plan and each kind of refund tool, then rounds of a random call, crash point
and slow shop until the time is over. What is done is kept in a file, so that it can be ended and
goes on later: with what differed, and what was not played. It runs beside the shop:
``python -m surehand.examples.shop -- python -m tests.drill_full``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import typer
from pydantic import BaseModel

from surehand.cli.options import read_duration
from surehand.process.children import Child
from surehand.process.dev_server import DevServer, find_cli
from surehand.process.exits import end_by_signal_in_order
from tests.drill_selections import SELECTIONS, Selection, round_of
from tests.worker_process import ROOT

DONE, DIFFERS, INTERRUPTED = 0, 3, 130


class Kept(BaseModel):
    """What is done so far, in the file that a later ``make drill-full`` goes on with."""

    seed: int
    selections: dict[str, int] = {}
    """The exit code of each drill that is done."""
    rounds: int = 0
    differed: list[int] = []
    """The rounds in which something differed."""
    soaked_s: float = 0
    seconds: float = 0


#: Plays one selection, with a report of that name, and returns its exit code.
Play = Callable[[Selection, str], int]


class FullDrill:
    """All selections and the soak, on a file that keeps what is done."""

    def __init__(self, file: Path, play: Play, say: Callable[[str], None]) -> None:
        self._file, self._play, self._say = file, play, say
        self._began = time.monotonic()
        if file.exists():
            self.kept = Kept.model_validate_json(file.read_text())
            say(f"Going on; to begin anew instead: rm {file}")
            differed = [name for name, code in self.kept.selections.items() if code != DONE]
            for name in differed:
                say(f"It differed, and is played again: {name}")
                del self.kept.selections[name]
        else:
            self.kept = Kept(seed=random.SystemRandom().randrange(10**6))
        self._before_s = self.kept.seconds

    def run(self, soak_s: float) -> int:
        """Play what is left and return the exit code: 3 if anything differed."""
        try:
            code = self._selections() or self._soak(soak_s)
        finally:
            self._keep()
        if code:
            self._say(f"Ended early with exit code {code}: make drill-full goes on")
            return code
        return self._sum_up()

    def _selections(self) -> int:
        for number, selection in enumerate(SELECTIONS, 1):
            if selection.name in self.kept.selections:
                continue
            self._say(f"\nDrill {number} of {len(SELECTIONS)}: {selection.name}")
            code = self._play(selection, selection.name)
            if code not in (DONE, DIFFERS):
                return code
            self.kept.selections[selection.name] = code
            self._keep()
        return DONE

    def _soak(self, soak_s: float) -> int:
        while self.kept.soaked_s < soak_s:
            began, number, seed = time.monotonic(), self.kept.rounds + 1, self.kept.seed
            selection = round_of(seed, number)
            self._say(
                f"\nSoak, {self.kept.soaked_s / 60:.0f} of {soak_s / 60:.0f} min,"
                f" round {seed}-{number}: {selection}"
            )
            code = self._play(selection, "round")
            if code not in (DONE, DIFFERS):
                return code
            if code == DIFFERS:
                self.kept.differed.append(number)
                self._say(f"Again: make drill-full ROUND={seed}-{number}")
            self.kept.rounds = number
            self.kept.soaked_s += time.monotonic() - began
            self._keep()
        return DONE

    def _keep(self) -> None:
        self.kept.seconds = self._before_s + time.monotonic() - self._began
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(self.kept.model_dump_json(indent=1) + "\n")

    def _sum_up(self) -> int:
        kept = self.kept
        bad = [name for name, code in kept.selections.items() if code != DONE]
        bad += [f"round {kept.seed}-{number}" for number in kept.differed]
        self._say(
            f"\n{'DIFFERS' if bad else 'OK'}: {len(kept.selections)} drills and {kept.rounds}"
            f" rounds of soak in {kept.seconds / 60:.1f} min"
            + (f"; not the same world: {', '.join(bad)}" if bad else ", nothing lost or doubled")
        )
        self._file.unlink()
        return DIFFERS if bad else DONE


def drilled(selection: Selection, name: str, folder: Path, settings: Mapping[str, str]) -> int:
    """Play a selection with ``starter.py drill`` and return its exit code."""
    with httpx.Client(base_url=settings["SHOP_URL"], trust_env=False) as shop:
        shop.delete("/admin/faults").raise_for_status()
        for endpoint, fault in selection.faults().items():
            shop.put(f"/admin/faults/{endpoint}", json=fault).raise_for_status()
    command = [
        *(sys.executable, "starter.py", "drill", *selection.arguments()),
        *("--report", str(folder / f"{name}.html")),
    ]
    environment = {**os.environ, **settings, **selection.variables}
    child = Child(command, environment=environment, log=None, folder=ROOT, guard="TERM")
    try:
        code = child.wait()
    except KeyboardInterrupt:  # it reaches us only, and we pass it on once
        child.signal(signal.SIGINT)
        child.wait()
        code = INTERRUPTED
    return code


def main() -> int:
    """Run what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(prog="make drill-full", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".surehand/drill"))
    parser.add_argument("--soak", default="1h", help="a duration such as 10m; 0 for none")
    parser.add_argument("--round", default="", metavar="SEED-NUMBER", help="only this round again")
    options = parser.parse_args()
    try:
        soak_s = 0.0 if options.soak == "0" else read_duration(options.soak).total_seconds()
        again = [int(part) for part in options.round.split("-")] if options.round else []
        if len(again) not in (0, 2):
            raise ValueError("a round is written as 4711-17")
    except (typer.BadParameter, ValueError) as error:
        parser.error(str(error))
    if "SHOP_URL" not in os.environ:
        parser.error("no shop (SHOP_URL): run it with make drill-full")
    end_by_signal_in_order()

    def say(text: str) -> None:
        print(text, flush=True)

    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        settings = {"SHOP_URL": os.environ["SHOP_URL"]}
        if not os.environ.get("TEMPORAL_ADDRESS"):
            own = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="surehand-drill-")))
            server = DevServer.start(cli=find_cli(log=say), log_file=own / "temporal.log")
            running.callback(server.kill)
            settings["TEMPORAL_ADDRESS"] = server.address

        def play(selection: Selection, name: str) -> int:
            return drilled(selection, name, folder, settings)

        if again:
            selection = round_of(*again)
            say(str(selection))
            return play(selection, "round")
        return FullDrill(folder / "full.json", play, say).run(soak_s)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
