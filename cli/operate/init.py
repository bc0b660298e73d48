"""``init``: a folder to begin with, which has tools, a plan, a test and settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from surehand.cli.verb import options
from surehand.cli.verb.printer import Lines, Reply
from surehand.cli.verb.shapes import NewProject
from surehand.process import PACKAGE
from surehand.process.exits import OutputLost, WrongUse
from surehand.process.program import INSTALLED, command, module, program

#: What lies there is what is written; `env` without its dot, because it is no settings file here.
_TEMPLATE: Final = PACKAGE / "examples" / "project"
#: Each file with what it is, in the order of reading.
_FILES: Final = {
    "refunds.py": "tools: what runs may do",
    "refund.yaml": "a plan: which tools, in which order",
    "test_refund.py": "a test that kills workers in the middle of the plan",
    ".env": "settings",
}
_START: Final = ("start", "refund.yaml", "--run-id", "refund-1", "--wait")
_QUEUE: Final = "SUREHAND_TASK_QUEUE="


def init(
    caller: options.Unjudged,
    folder: Annotated[
        Path, typer.Argument(help="Where; it is made if need be. Nothing is overwritten.")
    ] = Path(),
) -> Reply:
    """Write a tool module, a plan, a test and settings to begin with.

    Example: python starter.py init refunds
    """
    contents = {folder / name: _content(name, folder.resolve().name) for name in _FILES}
    there = [str(path) for path in contents if path.exists() or path.is_symlink()]
    if there:
        raise WrongUse(f"nothing is written, because there is already: {', '.join(there)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise OutputLost(f"{error.filename}: {error.strerror}") from error
    there_too = {"elsewhere": folder != Path()}
    # A checkout has not told pytest of its plugin.
    plugin = "" if program() == INSTALLED["starter"] else "-p surehand.drill.plugin "
    test = module(f"pytest {plugin}test_refund.py", **there_too)
    commands = [command("dev", **there_too), command(*_START, **there_too), test]
    written = NewProject(folder=str(folder), files=list(_FILES), commands=commands)
    return Reply(written, _lines(written))


def _content(name: str, project: str) -> str:
    text = (_TEMPLATE / name.removeprefix(".")).read_text(encoding="utf-8")
    queue = re.sub(r"[^A-Za-z0-9_.-]+", "-", project).strip("-") or "surehand"
    return text.replace(f"{_QUEUE}surehand", f"{_QUEUE}{queue}") if name == ".env" else text


def _lines(written: NewProject) -> Lines:
    for name, what in _FILES.items():
        yield f"{Path(written.folder, name)!s:<24}  {what}"
    dev, *others = written.commands
    here = [] if written.folder == "." else [f"cd {shlex.quote(written.folder)}"]
    for headline, commands in (
        ("Server, ledger and worker in this terminal, until Ctrl-C:", [dev]),
        ("In another one: a run, which waits for an approval; and the test:", others),
    ):
        yield ""
        yield headline
        yield from (f"  {line}" for line in (*here, *commands))
