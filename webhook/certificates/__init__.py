"""Sources of the serving certificate: files, or a CA that the webhook's replicas share in a Secret."""
