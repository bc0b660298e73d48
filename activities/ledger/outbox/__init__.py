"""What people are to be told."""
