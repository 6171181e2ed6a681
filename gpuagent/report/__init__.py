"""How the agent speaks: metrics, the HTTP port, events."""
