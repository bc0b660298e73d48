"""The ledger: the SQL record of effects, and the only room with SQL."""
