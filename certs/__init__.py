"""Certificates for the webhook: a small authority of its own, and where its certificates are kept.

`authority` issues and `directory` keeps a CA and a serving certificate in files. In a cluster `rotation` says
how one CA follows another and `bundle` what is to be trusted, both pure; `secret` and `ca_injector` read and
write the Secret and the caBundles, and `manager` combines them. This package does not know what
the certificates are used for.
"""
