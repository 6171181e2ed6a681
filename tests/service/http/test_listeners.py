"""Addresses, and the sockets that listen on them."""

import socket

import pytest

from service.http.limits import Address, open_listeners


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_all_addresses_of_a_host_share_one_port(host: str) -> None:
    listeners = await open_listeners(Address(host, 0))
    try:
        assert len({listener.getsockname()[1] for listener in listeners}) == 1
        with pytest.raises(OSError, match="in use"):
            await open_listeners(Address(host, listeners[0].getsockname()[1]))
    finally:
        for listener in listeners:
            listener.close()


async def test_the_kernels_buffers_are_small_where_wanted() -> None:
    (small,) = await open_listeners(Address("127.0.0.1", 0), buffer_bytes=32 * 1024)
    with small, socket.create_connection(small.getsockname()) as client:
        accepted, _ = small.accept()
        with accepted:
            sizes = [
                accepted.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)
            ]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) not in sizes
    assert sizes == [64 * 1024, 64 * 1024]


async def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(OSError, match=r"not known|resolution|associated"):
        await open_listeners(Address("no-such-host.invalid", 0))


@pytest.mark.parametrize("text", ["", "8443", "localhost", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address.parse(text)


def test_addresses() -> None:
    assert Address.parse("127.0.0.1:8443") == Address("127.0.0.1", 8443)
    assert str(Address.parse("[::1]:8443")) == "[::1]:8443"
    assert Address.parse(":8443") == Address("", 8443)
