"""The activities that open, steer and close a run."""
