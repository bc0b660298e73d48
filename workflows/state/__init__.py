"""What a run knows of itself."""
