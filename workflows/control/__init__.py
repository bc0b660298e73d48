"""What reaches a run from outside: taken in, judged by the ledger, then followed."""
