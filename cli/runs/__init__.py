"""Verbs that start, follow and show runs."""
