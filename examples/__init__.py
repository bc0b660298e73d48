"""Examples: plans and tools to copy from, and a real service that they act on."""

if __name__ != "surehand.examples":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.examples here: import that")
