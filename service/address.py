"""Where a service listens."""

from dataclasses import dataclass

from service.text import quoted


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `127.0.0.1:8443`, `[::1]:8443`, or `:8443` for every address.

        Raises:
            ValueError: it is something else.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5) or int(port) > 65535:
            raise ValueError(f"{quoted(text)} is not HOST:PORT, such as 127.0.0.1:8443")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
