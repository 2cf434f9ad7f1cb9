"""GetServerInfo: who answers, and what it allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server

BOUNDS = (
    "default_deadline_ms",
    "max_batch_requests",
    "max_lengths_asked",
    "max_list_page_leases",
    "max_prefix_hashes",
    "max_received_bytes",
    "max_request_id_bytes",
    "max_tenant_bytes",
    "max_ttl_ms",
    "max_wait_ms",
    "quarantine_bound_ms",
    "uncommitted_ttl_ms",
)


@case("standard", needs=["limits"])
def it_says_who_answers(server: Server) -> None:
    """Version, backing, page size and addresses."""
    info = server.call("GetServerInfo")
    check(info.version, "version is missing")
    check(info.backing in ("memory", "none"), f"backing must be memory or none: {info.backing!r}")
    check(info.page_tokens > 0, "page_tokens must be above 0")
    check(info.addresses, "addresses are missing")


@case("fresh", needs=["limits"])
def it_agrees_with_the_capacity(server: Server) -> None:
    """Epoch and draining are the node's."""
    info, seen = server.call("GetServerInfo"), server.capacity()
    equal((info.epoch, info.draining), (seen.epoch, seen.draining), "epoch and draining")


@case("fresh", needs=["limits"])
def its_uptime_grows_from_one_start(server: Server) -> None:
    """The start stays, the uptime grows."""
    first, second = server.call("GetServerInfo"), server.call("GetServerInfo")
    apart = abs(second.start_time.ToNanoseconds() - first.start_time.ToNanoseconds()) / 1e9
    check(apart < 1, f"start_time moved by {apart:.3f} s")
    check(second.uptime.ToNanoseconds() > first.uptime.ToNanoseconds(), "uptime did not grow")


@case("refusals", needs=["limits"])
def every_bound_is_told(server: Server) -> None:
    """The bounds that a caller may meet, each above 0."""
    limits = server.call("GetServerInfo").limits
    missing = [name for name in BOUNDS if not limits.get(name)]
    check(not missing, f"limits without {missing}")
