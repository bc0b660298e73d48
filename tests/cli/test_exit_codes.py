"""The exit code is the verb's, whatever the SDK's threads do while the process ends."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from surehand.process.exits import OUTPUT_LOST
from tests.cli.starter import Run, Starter, Verbs


def test_the_exit_code_is_right_25_times_out_of_25(
    starter: Starter, verbs: Verbs, new_run: Callable[..., Run]
) -> None:
    waiting, cancelled, rejected, done = new_run(), new_run(), new_run(), new_run()
    verbs("cancel", cancelled.name, "--wait")
    for verb, run in (("reject", rejected), ("approve", done)):
        [asked] = verbs("show", run.name, "--json").document()["result"]["waiting_for"]
        verbs(verb, asked["id"], "--params-hash", asked["params_hash"])
        verbs(*run.start, "--wait")
    ends = [
        ([*waiting.start, "--wait"], 10),
        ([*cancelled.start, "--wait"], 30),
        ([*rejected.start, "--wait"], 20),
        ([*done.start, "--wait"], 0),
        (["show", "not-there"], 2),
    ] * 5

    # Side by side: a machine under load is where an interpreter aborts at its exit.
    with ThreadPoolExecutor(4) as several:
        codes = list(several.map(lambda end: starter(*end[0]).code, ends))

    assert codes == [code for _, code in ends]


@pytest.mark.parametrize("json_output", [(), ("--json",)])
def test_output_that_cannot_be_written_is_no_success(
    starter: Starter, json_output: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            starter.command("tools", *json_output),
            env=starter.environment,
            cwd=starter.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert ended.returncode == OUTPUT_LOST
    assert "Traceback" not in ended.stderr


def test_a_reader_that_has_gone_ends_the_output_quietly(starter: Starter) -> None:
    with starter.popen("tools") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (141, "")
