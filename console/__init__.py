"""The command `kaishare` for people: one view of a cluster, with the caller's own rights."""
