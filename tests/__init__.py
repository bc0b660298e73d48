"""The tests: their names are the claims."""
