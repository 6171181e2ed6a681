"""`kaishare top`: the figures of a cluster's agents in one table."""
