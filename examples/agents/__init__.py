"""Agents as people have them, without Surehand: what ``surehand try`` is shown with."""
