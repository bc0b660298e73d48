"""Verbs that look at plans without running them."""
