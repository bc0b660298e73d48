"""The exit code is the verb's, whatever the SDK's threads do while the process ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.cli.starter import Run, Starter, Verbs


def test_the_exit_code_is_right_50_times_out_of_50(
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
    ] * 10

    # Side by side: a machine under load is where an interpreter aborts at its exit.
    with ThreadPoolExecutor(4) as several:
        codes = list(several.map(lambda end: starter(*end[0]).code, ends))

    assert codes == [code for _, code in ends]
