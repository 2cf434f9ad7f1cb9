"""A service behind lines that take their time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hisparse_svc import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.serve.conftest import Served

ONE_WAY_S = 0.1


@contextmanager
def slow_line(socket: str) -> Iterator[str]:
    """Pass bytes on to a Unix socket and back, each a while later; gives where to dial."""
    loop = asyncio.new_event_loop()

    async def pump(read: asyncio.StreamReader, write: asyncio.StreamWriter) -> None:
        while data := await read.read(1 << 16):
            loop.call_later(ONE_WAY_S, write.write, data)
        loop.call_later(ONE_WAY_S, write.close)

    async def passed_on(read: asyncio.StreamReader, write: asyncio.StreamWriter) -> None:
        far_read, far_write = await asyncio.open_unix_connection(socket)
        await asyncio.gather(pump(read, far_write), pump(far_read, write), return_exceptions=True)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(passed_on, "127.0.0.1", 0), loop).result(10)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:

        async def end() -> None:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(2 * ONE_WAY_S)  # what is still on its way

        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_line_of_a_fifth_of_a_second_is_slow_and_no_dead_service(node: Served) -> None:
    with slow_line(str(node.socket)) as target, Client(target) as client:
        assert client.get_capacity().largest_grant_tokens
