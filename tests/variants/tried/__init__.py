"""Agents as people have them, each with one read and one write."""
