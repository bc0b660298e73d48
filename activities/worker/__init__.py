"""What a worker's process has for itself: settings, clock, logs, metrics."""
