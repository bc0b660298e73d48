"""Approval requests, decisions, votes."""
