"""Verbs of operators."""
