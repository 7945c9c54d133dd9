"""The ledger of claims: its language, the evaluations it needs, verdicts and their table."""
