"""Texts that are rendered once and shared by all answers, as they are and compressed by gzip."""

import asyncio
import re
import zlib
from typing import Final

from aiohttp import web

COMPRESSION_LEVEL: Final = 3
"""zlib's level. Metrics are 11 % larger than at level 6, for less than half of its CPU (measured: 109 kB and
2.7 ms for 710 kB, zlib 1.2.13)."""

_INLINE_BYTES: Final = 64 * 1024
"""Longest text that is compressed in the event loop, within about a millisecond; a longer one in a thread."""

_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_QUALITY: Final = re.compile(r"q\s*=\s*([01](?:\.[0-9]{0,3})?)", re.IGNORECASE)


class Buffer:
    """Immutable bytes in parts. It is in memory once, as long as the server or an answer refers to it."""

    __slots__ = ("__weakref__", "parts", "size")

    def __init__(self, parts: tuple[bytes, ...]) -> None:
        self.parts = parts
        self.size = sum(map(len, parts))


class SharedText:
    """A text that all answers share. Answers may add bytes of their own before and after it."""

    def __init__(self, *parts: bytes) -> None:
        """Set the text, in parts: one object of the whole size would be the largest of the process."""
        self.plain = Buffer(parts)
        self._deflating: asyncio.Task[tuple[Buffer, int]] | None = None

    async def gzipped(self, before: bytes, after: bytes) -> tuple[bytes, Buffer, bytes]:
        """Return one gzip file of the text between two others, in three parts.

        The text is compressed once, by the first caller. The ends of the parts are ends of deflate blocks.
        """
        if self._deflating is None:
            self._deflating = asyncio.create_task(self._deflate())
        deflated, checksum = await asyncio.shield(self._deflating)
        head = _GZIP_HEADER
        if before:
            head += _deflated((before,), zlib.Z_FULL_FLUSH)
            checksum = _checksum((before, *self.plain.parts))
        size = len(before) + self.plain.size + len(after)
        trailer = zlib.crc32(after, checksum).to_bytes(4, "little") + (size % 2**32).to_bytes(4, "little")
        return head, deflated, _deflated((after,), zlib.Z_FINISH) + trailer

    async def _deflate(self) -> tuple[Buffer, int]:
        """Return the deflate blocks of the text, and its checksum."""
        if self.plain.size <= _INLINE_BYTES:
            return self._blocks()
        return await asyncio.to_thread(self._blocks)

    def _blocks(self) -> tuple[Buffer, int]:
        parts = self.plain.parts
        return Buffer((_deflated(parts, zlib.Z_FULL_FLUSH),)), _checksum(parts)


def accepts_gzip(request: web.BaseRequest) -> bool:
    """Whether the client takes gzip: named, or by `*`, with a quality above 0 (RFC 9110, 12.5.3)."""
    qualities: dict[str, float] = {}
    for field in ",".join(request.headers.getall("Accept-Encoding", [])).split(","):
        coding, _, weight = field.partition(";")
        quality = _QUALITY.fullmatch(weight.strip())
        qualities[coding.strip().lower()] = float(quality[1]) if quality else float(not weight.strip())
    return qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0))) > 0


def _deflated(parts: tuple[bytes, ...], flush: int) -> bytes:
    compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"".join([*map(compressor.compress, parts), compressor.flush(flush)])


def _checksum(parts: tuple[bytes, ...]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
