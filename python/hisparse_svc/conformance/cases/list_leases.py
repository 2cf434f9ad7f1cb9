"""ListLeases: the live leases, a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal

if TYPE_CHECKING:
    from hisparse_svc._proto import types_pb2
    from hisparse_svc.conformance.server import Server


def all_pages(server: Server, size: int) -> list[list[types_pb2.Lease]]:
    """Every page of the run's tenant."""
    pages, token = [], ""
    while True:
        answer = server.call("ListLeases", tenant=server.tenant, page_size=size, page_token=token)
        pages.append(list(answer.leases))
        token = answer.next_page_token
        check(len(pages) < 50, "the pages never end")
        if not token:
            return pages


@case("fresh")
def leases_come_in_order_of_their_grant(server: Server) -> None:
    """All of a tenant's, and none of another's."""
    mine = [server.lease().id for _ in range(3)]
    server.foreign_lease()
    (page,) = all_pages(server, 0)
    equal([lease.id for lease in page], mine, "leases of the tenant")
    equal({lease.tenant for lease in page}, {server.tenant}, "their tenant")


@case("fresh")
def pages_hold_each_lease_once(server: Server) -> None:
    """Page by page it is the same list, the last page without a token."""
    mine = [server.lease().id for _ in range(4)]
    for size, sizes in ((1, [1, 1, 1, 1]), (3, [3, 1]), (4, [4]), (1000, [4])):
        pages = all_pages(server, size)
        equal([lease.id for page in pages for lease in page], mine, f"leases by pages of {size}")
        equal([len(page) for page in pages], sizes, f"lengths of pages of {size}")


@case("fresh")
def a_lease_released_between_pages_skips_no_other(server: Server) -> None:
    """A token goes on after the lease that it ended with, even when that one is gone."""
    mine = [server.lease() for _ in range(4)]
    first = server.call("ListLeases", tenant=server.tenant, page_size=2)
    server.release(mine[1])
    rest = server.call("ListLeases", tenant=server.tenant, page_size=2, page_token=first.next_page_token)
    equal([lease.id for lease in rest.leases], [lease.id for lease in mine[2:]], "leases after the token")


@case("fresh")
def a_released_lease_is_gone_from_it(server: Server) -> None:
    """It has what is held now."""
    first, second = server.lease(), server.lease()
    server.release(first)
    equal([lease.id for page in all_pages(server, 0) for lease in page], [second.id], "leases after a release")


@case("refusals")
def extents_are_left_out(server: Server) -> None:
    """A long list stays small enough to send; everything else is there."""
    lease = server.lease(pages=2)
    (listed,) = all_pages(server, 0)[0]
    equal(len(listed.extents), 0, "extents in a list")
    lease.ClearField("extents")
    equal(listed, lease, "the lease without its extents")


@case("refusals")
def a_token_of_nobody_is_refused(server: Server) -> None:
    """It must be one of an earlier answer."""
    asked = {"tenant": server.tenant, "page_token": "no token of yours"}
    server.invalid("ListLeases", "page_token", **asked)


@case("refusals")
def a_page_too_large_is_cut_to_the_most(server: Server) -> None:
    """More than the limit is no error."""
    server.lease()
    equal(len(server.call("ListLeases", tenant=server.tenant, page_size=2**32 - 1).leases), 1, "leases")


@case("isolation")
def a_tenant_of_nothing_has_none(server: Server) -> None:
    """An unknown tenant's list is empty."""
    answer = server.call("ListLeases", tenant="conformance-nobody")
    equal((len(answer.leases), answer.next_page_token), (0, ""), "leases and token")
