"""Telling people what waits for them."""
