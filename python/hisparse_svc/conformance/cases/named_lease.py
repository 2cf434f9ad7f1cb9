"""What Commit, Extend and Renew have in common: each names a lease, its epoch and its tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import equal
from hisparse_svc.conformance.server import Code

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server


def fields(server: Server, method: str) -> dict[str, Any]:
    """What the method needs besides."""
    return {"tokens": 2 * server.page_tokens} if method == "Extend" else {}


def stale_epoch(server: Server, method: str) -> None:
    """Another epoch is refused with the current one, even for a lease that exists."""
    lease = server.lease()
    for epoch in (lease.epoch - 1, lease.epoch + 1):
        named = server.named(lease, **fields(server, method)) | {"epoch": epoch}
        refused = server.refused(method, Code.FAILED_PRECONDITION, "STALE_EPOCH", **named)
        equal(refused.info.metadata["current_epoch"], str(server.epoch), "current_epoch in the details")
    same = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(
        (same.state, same.tokens, same.expire_time), (lease.state, lease.tokens, lease.expire_time), "the lease after"
    )


def no_epoch(server: Server, method: str) -> None:
    """The epoch must be given."""
    named = server.named(server.lease(), **fields(server, method)) | {"epoch": 0}
    server.invalid(method, "epoch", **named)


def unknown_lease(server: Server, method: str) -> None:
    """A released lease is LEASE_NOT_FOUND."""
    lease = server.lease()
    server.release(lease)
    named = server.named(lease, **fields(server, method))
    refused = server.refused(method, Code.NOT_FOUND, "LEASE_NOT_FOUND", **named)
    equal(refused.info.metadata["lease_id"], lease.id, "lease_id in the details")


def other_tenant(server: Server, method: str) -> None:
    """Another tenant's lease is PERMISSION_DENIED, and stays as it is."""
    lease = server.lease()
    named = server.named(lease, **fields(server, method)) | {"tenant": server.other_tenant}
    server.refused(method, Code.PERMISSION_DENIED, **named)
    same = server.call("GetLease", lease_id=lease.id, tenant=server.tenant).lease
    equal(
        (same.state, same.tokens, same.expire_time), (lease.state, lease.tokens, lease.expire_time), "the lease after"
    )


def no_lease_id(server: Server, method: str) -> None:
    """What is no lease id is malformed."""
    for lease_id in ("", "no lease of yours", "x" * 300):
        named = {"lease_id": lease_id, "epoch": server.epoch, "tenant": server.tenant, **fields(server, method)}
        server.invalid(method, "lease_id", **named)


SHARED = {
    "a_stale_epoch_is_refused_with_the_current_one": ("epoch", stale_epoch),
    "the_epoch_must_be_given": ("epoch", no_epoch),
    "a_released_lease_is_not_found": ("lifetime", unknown_lease),
    "another_tenants_lease_is_left_alone": ("isolation", other_tenant),
    "a_malformed_lease_id_is_named": ("refusals", no_lease_id),
}


def register(module: str, method: str) -> None:
    """Register the shared cases for one method, under its own name."""
    for name, (rule, shared) in SHARED.items():

        def show(server: Server, shared: Any = shared) -> None:
            shared(server, method)

        show.__name__, show.__module__, show.__doc__ = name, module, shared.__doc__
        case(rule)(show)
