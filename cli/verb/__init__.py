"""What every verb is made of: who calls, what it prints, and its way to runs and ledger."""
