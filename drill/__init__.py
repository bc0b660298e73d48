"""``drill``: kills workers at, interrupts, resets and stops every step of a user's own plan.

``request.py`` says what is drilled, ``environment.py`` where. ``case.py`` is one run with one
``disturbance.py``, ``suite.py`` all of them. ``workers.py`` is a case's workers, ``people.py``
those who approve and answer. ``forced_waits.py`` makes a run wait, ``operating.py`` does what
operators do, with ``deploying.py``. ``consistency.py`` counts from the ledger what was approved and
allowed, ``run_tree.py`` what stands. ``world.py`` asks the user's functions and compares,
``played.py`` is what came of a case. ``report.py`` is what comes out, as text, too;
``documents.py`` writes it to files. ``plugin.py`` is the same for pytest.
"""

if __name__ != "surehand.drill":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.drill here: import that")
