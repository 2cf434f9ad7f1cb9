"""A client that was closed, and deadlines that are none, say so as the library's own errors."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import Client, InvalidInput, Node, Unreachable, _core, aio
from hisparse_svc.rpc import calls, values
from hisparse_svc.rpc.refusals import CLOSED

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUTS = ["5", True, None, 0, -1, float("nan"), float("inf"), 1e300, 1e-9]


@pytest.mark.parametrize("timeout_s", TIMEOUTS, ids=repr)
def test_a_timeout_that_is_none_is_refused_when_the_client_is_made(timeout_s: Any) -> None:
    with pytest.raises(InvalidInput, match=r"timeout_s .* from 0\.001 to 1,000,000,000"):
        Client("unix:/nowhere", timeout_s=timeout_s)
    with pytest.raises(InvalidInput, match="timeout_s"):
        aio.Client("unix:/nowhere", timeout_s=timeout_s)


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    client = Client(f"unix:{tmp_path}/s")
    client.close()
    for call in (
        client.get_capacity,
        lambda: client.admit(1),
        client.list_models,
        lambda: next(client.watch_capacity()),
    ):
        with pytest.raises(Unreachable, match=re.escape(CLOSED)):
            call()


def test_a_closed_asyncio_client_says_so_also_to_calls_under_way() -> None:
    async def drive(target: str) -> None:
        client = aio.Client(target)
        held = await client.admit(pages=300)
        waits = asyncio.create_task(client.admit(pages=300, wait_s=30))
        await asyncio.sleep(0.2)
        await client.close()
        with pytest.raises(Unreachable):
            await waits
        for call in (client.get_capacity(), client.admit(1), anext(client.watch_capacity()), held.release()):
            with pytest.raises(Unreachable, match="was closed"):
                await call

    with Node.embedded(host_pool="1GiB", backing="none") as node:
        asyncio.run(drive(node.target))


def test_a_client_of_a_node_that_has_stopped_says_so() -> None:
    with Node.embedded(host_pool="1GiB", backing="none") as node:
        client, other = node.client, Client(node.target, timeout_s=1)
    with pytest.raises(Unreachable, match="was closed, by close\\(\\) or with its node"):
        client.get_capacity()
    with pytest.raises(Unreachable, match="there is no socket"):
        other.get_capacity()
    other.close()


def test_a_life_of_no_time_is_not_taken_for_the_default() -> None:
    for seconds in (0, 0.0, True, "5"):
        with pytest.raises(InvalidInput, match="ttl"):
            calls.renew("l", 1, "", seconds)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="ttl"):
            calls.admit(values.Request(prompt_tokens=1, ttl_s=seconds))  # type: ignore[arg-type]


def test_a_truth_is_no_number() -> None:
    with pytest.raises(InvalidInput, match="prompt_tokens"):
        calls.admit(values.Request(prompt_tokens=True))
    with pytest.raises(InvalidInput, match="lengths"):
        calls.get_capacity([64, True])


def test_lengths_beyond_the_cores_bounds_are_refused_by_name_before_a_call_is_made() -> None:
    most = _core.MAX_LENGTHS_ASKED
    for make in (calls.get_capacity, calls.watch_capacity, calls.overview):
        make([1, _core.MAX_CONTEXT_TOKENS] * (most // 2))
        with pytest.raises(InvalidInput) as refused:
            make([0, *range(1, most), _core.MAX_CONTEXT_TOKENS + 1])
        fields = [problem.field for problem in refused.value.problems]
        assert fields == ["lengths", "lengths[0]", f"lengths[{most}]"]
        assert (
            str(refused.value.problems[0]) == f"lengths is {most + 1} lengths: must be at most {most}; ask about fewer"
        )
