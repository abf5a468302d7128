"""Episodes: leases, the queue for admission, teams, timeouts, and the ledger they share."""
