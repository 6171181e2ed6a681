"""The admission webhook: gives pods their KAI queue and GPU share from the labels of their namespace.

`policy` parses labels and decides about pods; it is pure. `namespaces` supplies the labels, `admission`
answers reviews, `server` listens, `certificates` supplies the serving certificate, and `registration`
describes the webhook configurations. `explain` and `doctor` are commands of their own.
"""
