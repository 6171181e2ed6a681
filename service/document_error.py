"""The error of `service.documents`, for programs that read no documents and so do without the YAML parser."""


class DocumentError(ValueError):
    """An invalid document; the message is one line that names the input and the error."""
