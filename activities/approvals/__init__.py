"""The activities of the gate."""
