"""Runs: opened, steered, continued as new, and brought to their end."""
