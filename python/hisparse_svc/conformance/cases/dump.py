"""Dump: the whole ledger as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal
from hisparse_svc.conformance.laws import kept_by_answer

if TYPE_CHECKING:
    from hisparse_svc._proto import admin_pb2
    from hisparse_svc.conformance.server import Server


def dumped(server: Server) -> list[admin_pb2.DumpResponse]:
    """All parts of a dump."""
    with server.wire.stream("Dump") as parts:
        found = list(parts)
    for part in found:
        kept_by_answer(part)
    return found


@case("conserved", needs=["admin"])
def the_first_part_alone_has_the_capacity(server: Server) -> None:
    """Capacity once, leases after it."""
    parts = dumped(server)
    equal([part.HasField("capacity") for part in parts], [True] + [False] * (len(parts) - 1), "parts with capacity")


@case("fresh", needs=["admin"])
def every_lease_is_in_it_with_its_extents(server: Server) -> None:
    """Those just granted too."""
    mine = {lease.id: lease for lease in (server.lease(pages=2) for _ in range(3))}
    found = {lease.id: lease for part in dumped(server) for lease in part.leases}
    check(set(mine) <= set(found), f"leases missing from the dump: {set(mine) - set(found)}")
    equal([found[name] for name in mine], list(mine.values()), "leases as Admit gave them")


@case("conserved", needs=["admin", "idle"])
def its_leases_account_for_its_pools(server: Server) -> None:
    """Pages of the leases, those that are shared counted once, are the pages that the pools count as held."""
    server.call("Commit", **server.named(server.lease(pages=3)))
    server.lease(pages=4)
    first, *rest = dumped(server)
    held = sum(server.amounts(part, first.capacity)["host_pages"] for part in ("reserved", "committed"))
    leases = [lease for part in [first, *rest] for lease in part.leases]
    equal(sum(lease.pages - lease.shared_pages for lease in leases), held, "pages of the leases, and of the pool")
