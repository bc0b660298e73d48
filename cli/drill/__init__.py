"""``drill``: kills workers at, interrupts, resets and stops every step of a user's own plan.

``request.py`` says what is drilled, ``ground.py`` where, ``case.py`` is one run with one
disturbance, ``course.py`` all of them. ``crew.py`` is a case's workers, ``people.py`` those who
approve and answer, ``changed_plan.py`` and ``interrupting.py`` make a run wait, ``operating.py``
does what operators do, with ``resetting.py`` and ``deploying.py``; ``proven.py`` counts from the
ledger what was approved and allowed, ``standing.py`` what stands.
``world.py`` asks the user's functions and compares, ``report.py`` is what comes out, and
``matrix.py``, ``markdown.py`` and ``html.py`` show it. ``plugin.py`` is the same for pytest.
"""
