"""Actions of call4agents, by its own Python.

``python -m benchmarks.peer_call4agents steps DATABASE ACTIONS 1``, or ``approved``. It commits to
SQLite as the ledger does, with a write-ahead log and ``synchronous=FULL``: that is its default.
"""

from __future__ import annotations

import os

import call4agents  # type: ignore[import-not-found]

from benchmarks.peer_program import APPROVED, arguments, called, measure


def main() -> None:
    """Do what the arguments say."""
    what, database, actions, runs = arguments()
    call4agents.init(database.removeprefix("sqlite:///"))

    def play(name: str, count: int) -> None:
        def refund(order: str, amount: str) -> dict[str, str]:
            called(name)
            return {"refund": "r-1", "amount": amount}

        action = call4agents.effect(refund, name="payments.refund", approval=what == APPROVED)
        for number in range(count):
            params = {"order": str(number), "amount": "120.00"}
            # Each in a run of its own, which costs nothing: it reads all approvals of a run.
            with call4agents.run(f"{name}-{os.getpid()}-{number}"):
                if what == APPROVED:
                    call4agents.approve(action, **params)
                action(**params)

    measure(play, actions, runs)


if __name__ == "__main__":
    main()
