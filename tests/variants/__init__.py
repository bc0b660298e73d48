"""Toolboxes with the names of ``examples.shop.tools``, whose refund recovers in another way."""
