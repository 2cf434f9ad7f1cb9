"""A service behind lines that take their time."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hisparse_svc import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.serve.conftest import Served

ONE_WAY_S = 0.3


async def pass_on(read: asyncio.StreamReader, write: asyncio.StreamWriter) -> None:
    try:
        while data := await read.read(1 << 16):
            await asyncio.sleep(ONE_WAY_S)
            write.write(data)
    finally:
        write.close()


async def line(read: asyncio.StreamReader, write: asyncio.StreamWriter, socket: str) -> None:
    far_read, far_write = await asyncio.open_unix_connection(socket)
    await asyncio.gather(pass_on(read, far_write), pass_on(far_read, write), return_exceptions=True)
    await asyncio.gather(write.wait_closed(), far_write.wait_closed(), return_exceptions=True)


@contextmanager
def slow_line(socket: str) -> Iterator[str]:
    """Pass bytes on to a Unix socket and back, each a while later; gives where to dial."""
    told: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = queue.Queue()

    async def serve() -> None:
        over, lines = asyncio.Event(), set[asyncio.Task[None]]()
        server = await asyncio.start_server(
            lambda read, write: lines.add(asyncio.create_task(line(read, write, socket))), "127.0.0.1", 0
        )
        told.put((asyncio.get_running_loop(), over, server.sockets[0].getsockname()[1]))
        await over.wait()
        server.close()
        await asyncio.wait_for(asyncio.gather(*lines), 10)  # both ends are closed by now

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, over, port = told.get(timeout=10)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def test_a_slow_line_is_slow_and_no_dead_service(node: Served) -> None:
    with slow_line(str(node.socket)) as target, Client(target) as client:
        assert client.get_capacity().largest_grant_tokens
