"""Effects room: tools, the ledger and everything that touches the world outside."""

if __name__ != "surehand.activities":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.activities here: import that")
