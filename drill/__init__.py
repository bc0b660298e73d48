"""``drill``: kills workers at, interrupts, resets and stops every step of a user's own plan.

``request.py`` says what is drilled, with the user's functions, ``environment.py`` where, and with
which workers. ``suite.py`` plays the cases, each a fresh run; ``people.py`` approve and answer, or
disturb it. ``judge.py`` counts from the ledger what was approved and allowed, and what stands, and
compares that with the fault-free run; ``report.py`` reports all of it. ``verb.py`` is the command,
``plugin.py`` the same for pytest.
"""

if __name__ != "surehand.drill":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.drill here: import that")
