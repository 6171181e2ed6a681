"""Programs that tests run in their own process under a low limit of open files; each prints a JSON result."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

from service.http.limits import (
    Address,
    descriptors_for_connections,
    plain_port_limits,
    raise_descriptor_limit,
)
from tests.support.page_server import RunningServer, get


async def _exhaust() -> dict[str, object]:
    running = RunningServer()
    running.address = await running.pages.start(Address("127.0.0.1", 0), plain_port_limits(256))
    client = socket.socket()
    client.setblocking(False)
    files = []
    try:
        while True:
            files.append(os.open("/proc/self/stat", os.O_RDONLY))
    except OSError:
        await asyncio.get_running_loop().sock_connect(client, (running.address.host, running.address.port))
        await asyncio.sleep(1.0)
    for file in files:
        os.close(file)
    await asyncio.get_running_loop().sock_sendall(client, get("/small"))
    answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1000), 20)
    return {"answered_afterwards": int(answer.split()[1]), "log": running.log}


def main() -> None:
    match sys.argv[1]:
        case "count":
            opened = len(list(Path("/proc/self/fd").iterdir()))
            result: object = [raise_descriptor_limit(), descriptors_for_connections(), opened]
        case "exhaust":
            result = asyncio.run(_exhaust())
        case unknown:
            raise SystemExit(f"no such program: {unknown}")
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
