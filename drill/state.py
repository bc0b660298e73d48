"""The cases that are done, kept in a file so that a long drill can go on where it was ended."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from surehand.drill.report import Cell, FaultFree, Target
from surehand.process.exits import WrongUse


class Baseline(BaseModel):
    """The fault-free run, and what every other one is compared with."""

    fingerprint: str
    targets: list[Target]
    fault_free: FaultFree
    compared: dict[str, Any]
    remaining: list[str]


class DrillState:
    """A file of lines: the baseline first, then a line for each cell as it is done."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self, fingerprint: str) -> tuple[Baseline, list[Cell]] | None:
        """Return what an earlier drill has left; ``None`` if there was none.

        A line that was cut off when the drill was killed is left out.

        Args:
            fingerprint: Of the drill that wants to go on.

        Raises:
            WrongUse: The file is of another drill, or no such file.
        """
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"--resume: {self.file} cannot be read: {error}") from error
        whole = [line for line in lines if line.endswith("\n")]
        if not whole:
            return None
        try:
            baseline = Baseline.model_validate_json(whole[0])
            cells = [Cell.model_validate_json(line) for line in whole[1:]]
        except ValidationError as error:
            raise WrongUse(f"--resume: {self.file} is not the state of a drill") from error
        if baseline.fingerprint != fingerprint:
            raise WrongUse(
                f"--resume: {self.file} is of another drill (plan, tools, world or fresh differ):"
                " leave --resume out to begin anew"
            )
        return baseline, cells

    def begin(self, baseline: Baseline, cells: Iterable[Cell] = ()) -> None:
        """Write the file anew."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = [baseline.model_dump_json(), *(cell.model_dump_json() for cell in cells)]
        self.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def add(self, cell: Cell) -> None:
        """Add a cell that is done."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{cell.model_dump_json()}\n")
