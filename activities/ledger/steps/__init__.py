"""What a run's steps leave on record: attempts, entries, batches, artifacts, bars."""
