"""What a policy says and decides: pure, without a cluster and without I/O."""
