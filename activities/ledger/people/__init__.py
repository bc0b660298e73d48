"""Who may decide and act, and what proves that they did."""
