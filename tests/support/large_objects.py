"""The largest and the deepest objects that an API server accepts."""

POD_BYTES = 1_400_000
"""Size of one pod as JSON; etcd refuses requests of more than 1.5 MiB (Kubernetes 1.36.3)."""


def deep_fields(levels: int) -> str:
    """Return fields as in the `fieldsV1` of managedFields, nested to this depth."""
    return '{"f:a":' * levels + "{}" + "}" * levels


def object_with_deep_fields(piece: bytes, levels: int, *, depth: int = 2000, size: int = POD_BYTES) -> bytes:
    """Return an object whose managedFields are deep, and are filled with pieces inside so many lists."""
    pieces = b",".join([piece] * (size // (len(piece) + 1)))
    fields = b'{"a":' + b"[" * depth + b"1" + b"]" * depth + b',"b":' + b"[" * levels + pieces + b"]" * levels
    labels = b'"labels":{"kai.scheduler/queue":"queue-a"}'
    metadata = b'"name":"a","uid":"u","resourceVersion":"7",' + labels
    return b'{"metadata":{' + metadata + b',"managedFields":[{"fieldsV1":' + fields + b'}}]},"kind":"x"}'
