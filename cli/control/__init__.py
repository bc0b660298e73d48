"""Verbs that steer a run or answer it."""
