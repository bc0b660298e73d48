"""Runs of DBOS, by its own Python: ``python -m benchmarks.peer_dbos steps DATABASE STEPS RUNS``.

A run is a workflow, and a call one of its steps. DBOS records what a step has returned.
"""

from __future__ import annotations

from typing import Any

from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found]

from benchmarks.peer_program import KEYED, STEPS, arguments, arrive, called, measure


def _call(run: str) -> dict[str, Any]:
    return {"at": called(run)}


def _call_outside(what: str) -> None:
    if what == KEYED:
        arrive(f"{DBOS.workflow_id}:{DBOS.step_id}", dedupes=True)
    else:
        arrive()


call = DBOS.step(name="call")(_call)
call_outside = DBOS.step(name="call_outside")(_call_outside)


def _steps(run: str, steps: int) -> None:
    for _ in range(steps):
        call(run)


def _one_step(what: str) -> None:
    call_outside(what)


def main() -> None:
    """Do what the arguments say."""
    what, database, steps, runs = arguments()
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": database,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    workflow = DBOS.workflow(name="steps")(_steps)
    killed = DBOS.workflow(name="killed")(_one_step)
    DBOS.launch()

    def play(run: str, steps: int) -> None:
        with SetWorkflowID(run):
            workflow(run, steps)

    if what == STEPS:
        measure(play, steps, runs)
    else:
        # Started once more under its id, it is the same run.
        with SetWorkflowID(what):
            DBOS.start_workflow(killed, what).get_result()
    DBOS.destroy()


if __name__ == "__main__":
    main()
