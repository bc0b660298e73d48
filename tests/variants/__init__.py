"""Toolboxes with the names of ``examples/shop/tools.py``, whose refund recovers in another way."""
