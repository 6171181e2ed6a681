"""The webhook configurations, and the order in which API servers call them."""
