"""``drill``: kills workers at every crash point of every step of a user's own plan.

``request.py`` says what is drilled, ``ground.py`` where, ``case.py`` is one run with one kill,
``course.py`` all of them; ``world.py`` asks the user's functions and compares, ``report.py`` is
what comes out, and ``matrix.py``, ``markdown.py`` and ``html.py`` show it. ``plugin.py`` is the
same for pytest.
"""
