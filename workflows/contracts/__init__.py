"""Every message that crosses a boundary: client to run, run to activity, and back.

Frozen and add-only: a field, once released, keeps its name and meaning, because recorded histories
are replayed against these models. New fields get defaults. Unknown fields are ignored, so an older
worker can read what a newer one wrote. Durations are ``timedelta``, times are aware UTC.
"""
