"""Measurements of what Surehand promises in figures; BENCHMARKS.md holds their results."""
