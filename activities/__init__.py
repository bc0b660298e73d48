"""Effects room: tools, the ledger and everything that touches the world outside."""
