"""A certificate authority for webhooks, and the storage of its certificates in files or in a cluster.

`authority` issues certificates. `directory` creates a CA and a serving certificate in files. In a cluster,
`rotation` decides how one CA follows another and `bundle` computes the trusted CAs; both are pure. `secret`
and `ca_injector` read and write the Secret and the caBundles. `manager` combines these modules.
"""
