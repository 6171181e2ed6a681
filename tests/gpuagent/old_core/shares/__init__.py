"""Shares: what each pod may use of which GPU, and the source of that figure. Pure."""
