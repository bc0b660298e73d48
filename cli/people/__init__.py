"""Verbs about who may decide."""
