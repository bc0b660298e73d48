"""Verbs that decide."""
