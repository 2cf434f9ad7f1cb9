"""Release: everything is given back, however late and however often it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal
from hisparse_svc.conformance.server import Code
from hisparse_svc.conformance.wire import Refused

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server


def gone(server: Server, lease_id: str) -> None:
    """Demand that a lease is no more."""
    server.refused("GetLease", Code.NOT_FOUND, "LEASE_NOT_FOUND", lease_id=lease_id, tenant=server.tenant)


@case("idempotent")
def a_lease_is_given_back_by_its_id(server: Server) -> None:
    """After it the lease is not found any more."""
    lease = server.lease()
    check(not server.release(lease).already_released, "already_released of a live lease")
    gone(server, lease.id)


@case("idempotent")
def a_lease_is_given_back_by_its_request_id(server: Server) -> None:
    """Who lost the answer of Admit needs no lease id."""
    lease = server.lease(request_id="lost")
    answer = server.call("Release", request_id="lost", tenant=server.tenant)
    check(not answer.already_released, "already_released of a live lease")
    gone(server, lease.id)


@case("idempotent")
def releasing_twice_succeeds(server: Server) -> None:
    """The second time says that there was nothing to give back."""
    lease = server.lease(request_id="twice")
    server.release(lease)
    check(server.release(lease).already_released, "already_released must be set by the second release")
    again = server.call("Release", request_id="twice", tenant=server.tenant)
    check(again.already_released, "already_released must be set by a release of the request after it")


@case("idempotent")
def releasing_what_never_was_succeeds(server: Server) -> None:
    """An unknown request id, and a tenant that nobody knows."""
    for tenant in (server.tenant, "conformance-nobody"):
        answer = server.call("Release", request_id="never was", tenant=tenant)
        check(answer.already_released, "already_released of what never was")


@case("idempotent")
def at_the_same_time_one_release_counts(server: Server) -> None:
    """Of sixteen releases at once one gives back, and all succeed."""
    lease = server.lease(pages=3)
    free = server.amounts("total")
    answers = server.together([("Release", {"lease_id": lease.id, "tenant": server.tenant})] * 16)
    failed = [answer for answer in answers if isinstance(answer, Refused)]
    check(not failed, f"{len(failed)} of 16 failed, the first with {failed[:1]}")
    equal(sum(not answer.already_released for answer in answers), 1, "releases that gave something back")
    equal(server.amounts("total"), free, "totals of the pools")


@case("conserved", needs=["idle"])
def what_was_taken_is_back(server: Server) -> None:
    """Reserved or committed, every pool has again what the lease held, once."""
    before = server.unheld()
    for commit in (False, True):
        lease = server.lease(pages=9)
        if commit:
            server.call("Commit", **server.named(lease))
        for _ in range(2):
            server.release(lease)
        equal(server.unheld(), before, "free pools (or being overwritten) after two releases")


@case("isolation")
def another_tenants_lease_is_left_alone(server: Server) -> None:
    """By its id it is PERMISSION_DENIED; by its request id there is nothing of that name. It lives on."""
    lease = server.lease(request_id="mine")
    server.refused("Release", Code.PERMISSION_DENIED, lease_id=lease.id, tenant=server.other_tenant)
    answer = server.call("Release", request_id="mine", tenant=server.other_tenant)
    check(answer.already_released, "another tenant's request was released by its name")
    server.call("GetLease", lease_id=lease.id, tenant=server.tenant)


@case("refusals")
def one_name_must_be_given_and_only_one(server: Server) -> None:
    """Neither and both are malformed."""
    lease = server.lease(request_id="named")
    server.refused("Release", Code.INVALID_ARGUMENT, tenant=server.tenant)
    server.refused("Release", Code.INVALID_ARGUMENT, tenant=server.tenant, lease_id=lease.id, request_id="named")
    server.call("GetLease", lease_id=lease.id, tenant=server.tenant)


@case("refusals")
def a_malformed_lease_id_is_named(server: Server) -> None:
    """What is no lease id is malformed, not unknown: its sender has a defect."""
    for lease_id in ("no lease of yours", "x" * 300):
        server.invalid("Release", "lease_id", lease_id=lease_id, tenant=server.tenant)
