"""One tool call: prepared, claimed, called, recorded, reconciled or undone."""
