"""The ledger's database: engines, transactions, tables, the event chain."""
