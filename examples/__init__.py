"""Examples: plans and tools to copy from, and a real service that they act on."""
