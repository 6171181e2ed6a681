"""The two ports: reviews over TLS, with connections that cannot hurt; and the rest, in the clear."""
