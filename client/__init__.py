"""The way in for programs: starting, following, deciding on and steering runs.

Needs ``workflows/``, ``process/`` and a Temporal server only: no ledger, no tools. The command line
comes in by it, too.
"""

if __name__ != "surehand.client":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.client here: import that")
