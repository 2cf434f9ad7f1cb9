"""JSON of a message: the proto's names, integers as numbers, nothing left out."""

from hisparse_svc._proto import admin_pb2, admission_pb2, capacity_pb2, types_pb2
from hisparse_svc.rpc.plain import to_plain


def test_integers_are_numbers_and_every_field_has_its_place() -> None:
    pool = types_pb2.Pool(name="host_pages", total=2**63, free=1)
    assert to_plain(pool) == {
        "name": "host_pages",
        "numa_node": None,
        "total": 2**63,
        "free": 1,
        "reserved": 0,
        "committed": 0,
        "evictable": 0,
        "scrubbing": 0,
        "quarantined": 0,
    }


def test_times_enums_and_maps_are_what_json_readers_expect() -> None:
    lease = types_pb2.Lease(id="l", state=types_pb2.LEASE_STATE_RESERVED)
    lease.expire_time.FromJsonString("2026-01-02T03:04:05.500Z")
    document = to_plain(admission_pb2.AdmitResponse(lease=lease))
    assert document["lease"]["state"] == "LEASE_STATE_RESERVED"
    assert document["lease"]["expire_time"] == "2026-01-02T03:04:05.500Z"
    assert document["capacity"] is None
    info = admin_pb2.GetServerInfoResponse(limits={"max_waiters": 7, "a": 1})
    info.uptime.nanos = 500_000_000
    plain = to_plain(info)
    assert (plain["limits"], plain["uptime"], plain["addresses"]) == ({"a": 1, "max_waiters": 7}, 0.5, [])


def test_of_a_oneof_only_the_member_that_is_set_is_shown() -> None:
    message = capacity_pb2.WatchCapacityResponse(epoch=1, sync=capacity_pb2.WatchSync())
    assert set(to_plain(message)) == {"epoch", "sequence", "sync", "fits", "resume_token"}
