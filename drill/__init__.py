"""``drill``: kills workers at, interrupts, resets and stops every step of a user's own plan.

``request.py`` says what is drilled, with the user's functions, ``environment.py`` where, and with
which workers. ``case.py`` is one run, ``disturb.py`` what is done to it, ``suite.py`` all of them.
``people.py`` approve and answer. ``consistency.py`` counts from the ledger what was approved and
allowed, and what stands. ``judge.py`` compares what came of a case with the fault-free run,
``report.py`` reports all of them. ``verb.py`` is the command, ``plugin.py`` the same for pytest.
"""

if __name__ != "surehand.drill":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.drill here: import that")
