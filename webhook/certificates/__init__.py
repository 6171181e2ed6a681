"""Where the serving certificate comes from: files that somebody keeps, or the webhook itself in a cluster."""
