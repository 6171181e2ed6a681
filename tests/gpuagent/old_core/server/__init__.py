"""HTTP server of the agent: page, JSON API, metrics and health checks."""
