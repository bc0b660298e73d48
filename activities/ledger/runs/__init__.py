"""Runs and their steps, as recorded."""
