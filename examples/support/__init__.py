"""A customer support agent: it reads a ticket, searches, reports, writes to the customer, closes.

``python -m surehand.examples.support`` is the outside world: a help desk with tickets and articles,
and a real mail server. ``tools`` is what a user of Surehand writes, and ``agent`` the agent.
"""
