"""The HTTP server of both services: bounded in connections, in time and in memory."""
