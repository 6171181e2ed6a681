"""A certificate authority for webhooks, and the storage of its certificates in a cluster.

`authority` issues certificates. `rotation` decides how one CA follows another, and is pure. `ca_injector`
computes and writes the caBundles of trusted CAs. `manager` reads and writes the Secret, and combines these.
"""
