"""Episodes, leases, groups, batches."""
