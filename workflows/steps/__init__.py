"""Steps: when one runs, its approval, its tool call, and how it ends."""
