"""Leases through the real client and a real server: what is granted, shared, repeated and given back."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import grpc
import hisparse_svc
import pytest
from hisparse_svc import Client, LeaseNotFound, LeaseState, NeverFits, PoolBusy, Request, RequestIdReused, aio
from hisparse_svc._proto import capacity_pb2

if TYPE_CHECKING:
    from tests.serve.conftest import Served


def held_pages(client: Client) -> int:
    pool = client.get_capacity().pool("host_pages")
    return pool.total - pool.free - pool.evictable


def test_a_lease_is_held_inside_its_block_and_free_after_it(client: Client) -> None:
    with client.admit(4_096, 256) as held:
        assert held.lease.pages == 68
        assert held.lease.state is LeaseState.RESERVED
        assert sum(extent.page_count for extent in held.lease.extents) == 68
        assert held_pages(client) == 68
        assert held.commit().state is LeaseState.COMMITTED
        assert held.extend(8_192).pages == 128
        assert held.renew(ttl_s=60).expires_at is not None
        assert [lease.id for lease in client.list_leases()] == [held.lease.id]
        assert client.get_lease(held.lease.id).tokens == 8_192
    assert held_pages(client) == 0
    assert client.list_leases() == []


def test_a_block_that_raises_releases_and_keeps_its_error(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.admit(100):
        raise ZeroDivisionError
    assert held_pages(client) == 0


def test_a_release_that_fails_does_not_hide_the_blocks_error(node: Served) -> None:
    client = node.client(timeout_s=1)

    def die_inside() -> None:
        with client.admit(100):
            node.process.kill()
            node.process.wait(timeout=10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        die_inside()
    assert "could not be released" in "".join(raised.value.__notes__)


def test_the_same_request_gives_the_same_lease_and_another_under_its_name_is_refused(client: Client) -> None:
    first = client.admit(100, request_id="r-1")
    again = client.admit(100, request_id="r-1")
    assert (again.lease.id, again.repeated_request) == (first.lease.id, True)
    with pytest.raises(RequestIdReused) as raised:
        client.admit(200, request_id="r-1")
    assert raised.value.lease_id == first.lease.id
    assert held_pages(client) == 2


def test_releasing_twice_is_no_error_and_says_so(client: Client) -> None:
    held = client.admit(100, request_id="r-1")
    assert not client.release(request_id="r-1").already_released
    assert held.release().already_released
    with pytest.raises(LeaseNotFound):
        held.commit()


def test_a_full_node_is_busy_and_says_where_and_when(client: Client) -> None:
    with client.admit(pages=300):
        with pytest.raises(PoolBusy) as raised:
            client.admit(pages=100)
        busy = raised.value
        assert (busy.pool, busy.exit_code) == ("host_pages", 4)
        assert busy.retry_after_s is not None
        assert busy.capacity is not None
        assert busy.capacity.pool("host_pages").free == 10
        with pytest.raises(NeverFits):
            client.admit(pages=311)


def test_a_waiting_request_is_granted_when_room_is_made(client: Client) -> None:
    first = client.admit(pages=300)
    threading.Timer(0.3, first.release).start()
    begun = time.monotonic()
    with client.admit(pages=100, wait_s=10) as held:
        assert held.lease.pages == 100
    assert 0.2 < time.monotonic() - begun < 5


def test_a_batch_is_granted_whole_or_not_at_all(client: Client) -> None:
    asked = [Request(pages=300), Request(pages=100), Request(pages=10)]
    with pytest.raises(PoolBusy) as refused:
        client.batch_admit(asked)
    assert refused.value.metadata["request"] == "1"
    assert held_pages(client) == 0
    assert all(decision.lease for decision in client.batch_admit([asked[0], asked[2]]))
    assert held_pages(client) == 310


def test_a_partial_batch_decides_each_by_itself(client: Client) -> None:
    asked = [Request(pages=300), Request(pages=100), Request(pages=10)]
    first, second, third = client.batch_admit(asked, partial=True)
    assert first.lease is not None
    assert isinstance(second.refusal, PoolBusy)
    assert third.lease is not None


def test_validating_reserves_nothing(client: Client) -> None:
    admission = client.validate_admit(Request(prompt_tokens=640))
    assert (admission.lease.id, admission.lease.pages) == ("", 10)
    assert held_pages(client) == 0


def test_a_watch_shows_what_happens(client: Client) -> None:
    watch = client.watch_capacity(lengths=[640])
    before = next(watch)
    assert before.pool("host_pages").free == before.pool("host_pages").total
    held = client.admit(pages=50)
    during = next(watch)
    assert during.pool("host_pages").reserved == 50
    assert during.sequence > before.sequence
    assert during.fits[0].count < before.fits[0].count
    held.release()
    assert next(watch).pool("host_pages").reserved == 0
    watch.close()


def test_asyncio_holds_releases_and_watches_alike(node: Served) -> None:
    async def drive() -> None:
        async with aio.Client(node.target) as client:
            watch = client.watch_capacity()
            assert (await anext(watch)).pool("host_pages").reserved == 0
            async with client.admit(pages=50) as held:
                assert held.lease.pages == 50
                assert (await anext(watch)).pool("host_pages").reserved == 50
            assert await client.list_leases() == []
            await watch.aclose()
            with pytest.raises(NeverFits):
                await client.admit(10**9)
            many = await asyncio.gather(*(client.admit(64) for _ in range(4)))
            assert len({held.lease.id for held in many}) == 4
            await asyncio.gather(*(held.release() for held in many))

    asyncio.run(drive())


def test_a_cancelled_task_gives_its_lease_back(node: Served) -> None:
    async def drive() -> int:
        async with aio.Client(node.target) as client:

            async def hold(begun: asyncio.Event) -> None:
                async with client.admit(pages=50):
                    begun.set()
                    await asyncio.sleep(60)

            begun = asyncio.Event()
            task = asyncio.create_task(hold(begun))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            pool = (await client.get_capacity()).pool("host_pages")
            return pool.total - pool.free

    assert asyncio.run(drive()) == 0


def test_plain_grpcio_reaches_the_socket_with_an_authority_of_its_own(node: Served) -> None:
    def ask(*options: tuple[str, str]) -> capacity_pb2.GetCapacityResponse:
        with grpc.insecure_channel(node.target, options) as channel:
            call = channel.unary_unary(
                "/hisparse.v1.CapacityService/GetCapacity",
                request_serializer=capacity_pb2.GetCapacityRequest.SerializeToString,
                response_deserializer=capacity_pb2.GetCapacityResponse.FromString,
            )
            answer: capacity_pb2.GetCapacityResponse = call(capacity_pb2.GetCapacityRequest(), timeout=5)
            return answer

    assert ask(("grpc.default_authority", "localhost")).max_request_tokens > 0


def test_the_planner_answers_over_the_wire_what_it_answers_here(client: Client) -> None:
    there = client.plan("glm-5.2", ratio=4, context=[131_072])
    here = hisparse_svc.plan("glm-5.2", ratio=4, context=[131_072])
    assert (there["device_tokens"], there["seats"]) == (here.device_tokens, here.seats)
    assert client.validate("glm-5.2")["valid"] is True
    assert "glm-5.2" in [model["name"] for model in client.list_models()]


def test_server_info_names_its_limits(client: Client) -> None:
    info = client.server_info()
    assert (info.backing, info.page_tokens) == ("none", 64)
    assert info.limits["max_lengths_asked"] == 64
    assert info.addresses[0].startswith("unix:")
