"""The plan: its format, its references, and whether it holds together."""
