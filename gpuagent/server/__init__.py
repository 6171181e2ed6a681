"""The HTTP server: page, API, metrics and health."""
