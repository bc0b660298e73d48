"""What is kept of a run, how long, and how the rest is hidden and deleted."""
