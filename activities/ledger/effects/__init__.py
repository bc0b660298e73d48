"""Entries: claimed, settled, undone."""
