"""Certificates for the webhook: a small authority of its own, and where its certificates are kept.

`authority` is pure and issues; `directory` keeps a CA and a serving certificate in files. Nothing here
knows what the certificates are served for.
"""
