"""``approvals``: pages in a browser, on which people see what waits for them, and decide."""
