"""The HTTP server of both services, with limits on connections, time and memory."""
