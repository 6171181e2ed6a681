"""`explain --server`: what an API server answers to the creation of each pod by dry run."""
