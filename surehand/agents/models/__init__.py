"""Asking models: the worker's side of a turn."""
