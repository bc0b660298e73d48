"""``codec``: a server that encrypts and decrypts for people and starters that have no keys."""
