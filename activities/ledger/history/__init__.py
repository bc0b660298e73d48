"""Reading and proving what happened."""
