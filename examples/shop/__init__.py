"""A small shop in a process of its own, and the tools that act on it.

The service (``python -m surehand.examples.shop``) stands for somebody else's API: it keeps orders,
payments, refunds, stock and outgoing mail in its own SQLite file, counts every effect it applies,
and can be told to misbehave. ``surehand.examples.shop.tools`` is what a user of Surehand writes.
"""
