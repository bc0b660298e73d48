"""``drill``: kills workers at, interrupts, resets and stops every step of a user's own plan.

``request.py`` says what is drilled and how a case disturbs its run, ``environment.py`` where, and
with which workers. ``case.py`` is one run, ``suite.py`` all of them. ``people.py`` are those who
approve, answer and make a run wait. ``consistency.py`` counts from the ledger what was approved and
allowed, and what stands. ``world.py`` asks the user's functions and compares, ``played.py`` is what
came of a case, ``report.py`` of all of them. ``verb.py`` is the command, ``plugin.py`` the same for
pytest.
"""

if __name__ != "surehand.drill":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.drill here: import that")
