"""Decodes admission reviews, passes them to one of the three webhooks, and encodes the answers."""
