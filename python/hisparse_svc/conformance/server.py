"""The service under test, as a case sees it: answers held to the laws, and leases that end with the case.

::

    case ──► Server.call ──► Wire ──► the service
                 └─ laws on every answer; every lease seen is released when the case is over

Everything happens under two tenants of the run's own, so a service in use is left as it was.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import grpc

from hisparse_svc._proto import admission_pb2, types_pb2
from hisparse_svc.conformance import laws, standard
from hisparse_svc.conformance.demands import Broken, Skipped, check, equal
from hisparse_svc.conformance.needs import NEEDS
from hisparse_svc.conformance.wire import Refused, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hisparse_svc.conformance.wire import Coming, Stream

Code = grpc.StatusCode
Lease = types_pb2.Lease

MOST_LEASES = 4_096
"""Leases that a case takes at most to fill a node."""
SETTLE_S = 5.0
"""Longest wait for a node to finish what it does by itself, such as overwriting pages."""
WATCHED_S = 0.5
"""How long a node is looked at to see whether others use it."""
OVERWRITTEN = {"seconds": 5}
"""Wait of a request whose pages may have been another tenant's: they are overwritten before they are granted."""
HELD = ("reserved", "committed", "quarantined")


class Server:
    """One service, and what one run holds of it."""

    def __init__(self, wire: Wire, *, tenant: str = "", destructive: bool = False) -> None:
        self.wire = wire
        self.destructive = destructive
        self.tenant = tenant or f"conformance-{secrets.token_hex(4)}"
        self.other_tenant = f"{self.tenant[:32]}-other"
        self._taken: dict[str, str] = {}
        self._newest = (0, 0)
        first = self.call("GetCapacity")
        self.epoch: int = first.epoch
        self.max_request_tokens: int = first.max_request_tokens
        self.info: Any = None
        try:
            self.info = self.call("GetServerInfo")
        except Refused as refused:
            if refused.code not in (Code.PERMISSION_DENIED, Code.UNIMPLEMENTED):
                raise
        self.page_tokens: int = self.info.page_tokens if self.info else 64
        self.limits: dict[str, int] = dict(self.info.limits) if self.info else {}
        self.admin = self._may_dump()
        listed = self.wire.talk(standard.REFLECT, list_services="*")
        self.services = sorted(service.name for service in listed.list_services_response.service)

    # What there is

    def missing(self, needs: Iterable[str]) -> str:
        """Say why a case with these needs cannot be shown; empty where it can."""
        engine = "hisparse.v1.EngineService" in self.services
        there = {
            "destructive": lambda: self.destructive,
            "admin": lambda: self.admin,
            "limits": lambda: bool(self.limits),
            "engine": lambda: engine,
            "no engine": lambda: not engine,
            "idle": self._idle,
            "unbounded": self._unbounded,
        }
        needs = [*needs, *(["unbounded"] if "idle" in needs else [])]
        return next((NEEDS[need] for need in needs if not there[need]()), "")

    def _idle(self) -> bool:
        """Nobody holds anything; what the node does by itself is waited for."""
        end = time.monotonic() + SETTLE_S
        while True:
            pools = self.call("GetCapacity").pools
            if any(getattr(pool, part) for pool in pools for part in HELD):
                return False
            if not any(pool.scrubbing for pool in pools) or time.monotonic() > end:
                return True
            time.sleep(0.05)

    def _unbounded(self) -> bool:
        """Whether the node would ever grant its longest request to this run's tenant: quotas may forbid it."""
        try:
            self.wire.call("Admit", **self.asked(prompt_tokens=self.max_request_tokens, validate_only=True))
        except Refused as refused:
            (fit,) = self.capacity(self.max_request_tokens, tenant=self.tenant).fits
            return refused.reason != "NEVER_FITS" or fit.count > 0
        return True

    def others_are_here(self) -> bool:
        """Whether somebody else holds something, or does something while this run does nothing."""
        try:
            listed = self.wire.call("ListLeases", page_size=1000).leases
        except Refused:
            listed = []
        if any(lease.tenant not in (self.tenant, self.other_tenant) for lease in listed):
            return True
        before = self.wire.call("GetCapacity").sequence
        time.sleep(WATCHED_S)
        return bool(self.wire.call("GetCapacity").sequence != before)

    def _may_dump(self) -> bool:
        try:
            with self.wire.stream("Dump") as parts:
                next(parts)
        except Refused as refused:
            if refused.code in (Code.PERMISSION_DENIED, Code.UNIMPLEMENTED):
                return False
            raise
        return True

    def limit(self, name: str) -> int:
        """Give a bound of the interface.

        Raises:
            Skipped: The service does not say it.
        """
        if name not in self.limits:
            raise Skipped(f"GetServerInfo.limits has no {name}")
        return self.limits[name]

    # Calls

    def call(self, name: str, **fields: Any) -> Any:
        """Make a call that must succeed.

        Raises:
            Refused: It did not.
            Broken: Its answer breaks a law.
        """
        return self._answered(self.wire.call(name, **fields))

    def _answered(self, answer: Any, *, in_order: bool = True) -> Any:
        laws.kept_by_answer(answer)
        for lease in laws.inside(answer, Lease.DESCRIPTOR.full_name):
            if lease.id and lease.tenant in (self.tenant, self.other_tenant):
                self._taken[lease.id] = lease.tenant
        seen = answer if hasattr(answer, "observed_at") else getattr(answer, "capacity", None)
        if in_order and seen is not None and seen.sequence:
            stamp = (seen.epoch, seen.sequence)
            check(stamp >= self._newest, f"(epoch, sequence) went back from {self._newest} to {stamp}")
            self._newest = stamp
        return answer

    def refused(self, name: str, code: grpc.StatusCode, reason: str = "", **fields: Any) -> Refused:
        """Make a call that must be refused so.

        Raises:
            Broken: It succeeded, was refused otherwise, or its refusal breaks a law.
        """
        try:
            answer = self.call(name, **fields)
        except Refused as refused:
            laws.kept_by_refusal(refused)
            got = f"{refused.code.name} {refused.reason}".rstrip()
            equal(got, f"{code.name} {reason}".rstrip(), f"{name}: status ({refused.text})")
            return refused
        said = " ".join(str(answer).split())[:200]
        raise Broken(f"{name}: expected {code.name} {reason}, but it succeeded: {said}")

    def invalid(self, name: str, *wanted: str, **fields: Any) -> Refused:
        """Make a malformed call; the refusal must name these fields.

        Raises:
            Broken: It does not.
        """
        refused = self.refused(name, Code.INVALID_ARGUMENT, **fields)
        check(set(wanted) <= set(refused.fields), f"{name}: must name {', '.join(wanted)}; it names {refused.fields}")
        return refused

    def together(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
        """Make calls at the same time; give each one's answer or its `Refused`."""
        coming = [self.wire.begin(name, **fields) for name, fields in calls]
        ended: list[Any] = []
        for each in coming:
            try:
                ended.append(self._answered(each.result(), in_order=False))
            except Refused as refused:
                laws.kept_by_refusal(refused)
                ended.append(refused)
        return ended

    def begin(self, name: str, **fields: Any) -> Coming:
        """Send a call without waiting for its answer."""
        return self.wire.begin(name, **fields)

    def watch(self, **fields: Any) -> Stream:
        """Open a watch."""
        return self.wire.stream("WatchCapacity", **fields)

    # What most cases do

    def asked(self, pages: int = 1, **fields: Any) -> dict[str, Any]:
        """Give the fields of an Admit: so many pages' tokens under a new request id, unless told otherwise."""
        whole = pages * self.page_tokens
        return {"request_id": secrets.token_hex(8), "tenant": self.tenant, "prompt_tokens": whole, **fields}

    def admit(self, pages: int = 1, **fields: Any) -> Any:
        """Take a lease; give the whole answer. Raises as `granted` does."""
        asked = self.asked(pages, **fields)
        return self.granted("Admit", [asked], **asked)

    def batch(self, requests: Sequence[dict[str, Any]], **fields: Any) -> Any:
        """Take leases for a batch of requests; give the whole answer. Raises as `granted` does."""
        return self.granted("BatchAdmit", requests, requests=requests, **fields)

    def granted(self, name: str, asked: Sequence[dict[str, Any]], **fields: Any) -> Any:
        """Make a call that grants these requests.

        Raises:
            Skipped: The node has no room for them.
            Broken: It has, by its own word, and refuses all the same.
        """
        counts = ("prompt_tokens", "generated_tokens", "max_new_tokens")
        tokens = [sum(request.get(count, 0) for count in counts) for request in asked]
        longest = max(*tokens, *(request.get("pages", 0) * self.page_tokens for request in asked))
        end = time.monotonic() + SETTLE_S
        while True:
            try:
                return self.call(name, **fields)
            except Refused as refused:
                if refused.reason not in ("POOL_BUSY", "QUOTA"):
                    raise
                laws.kept_by_refusal(refused)
                (fit,) = self.capacity(longest, tenant=asked[0]["tenant"]).fits  # floors of others are not free to it
                if fit.count < len(asked):
                    raise Skipped(f"the node has no room for this case: {refused.text}") from None
                told = f"{len(asked)} x {longest} tokens are refused, and {fit.count} x would be granted: {refused}"
                check(time.monotonic() < end, told)
                time.sleep(0.02)  # pages that were another tenant's are being overwritten

    def lease(self, pages: int = 1, **fields: Any) -> Lease:
        """Take a lease."""
        made: Lease = self.admit(pages, **fields).lease
        return made

    def foreign_lease(self, **fields: Any) -> Lease:
        """Take a lease for the other tenant; pages that change tenant may have to be overwritten first."""
        return self.lease(tenant=self.other_tenant, wait=OVERWRITTEN, **fields)

    def named(self, lease: Lease, **more: Any) -> dict[str, Any]:
        """Give the fields by which Commit, Extend and Renew name a lease."""
        return {"lease_id": lease.id, "epoch": lease.epoch, "tenant": lease.tenant, **more}

    def release(self, lease: Lease) -> Any:
        """Give a lease back."""
        answer = self.call("Release", lease_id=lease.id, tenant=lease.tenant)
        self._taken.pop(lease.id, None)
        return answer

    def capacity(self, *lengths: int, tenant: str = "") -> Any:
        """Look at the node."""
        return self.call("GetCapacity", lengths=lengths, tenant=tenant)

    def amounts(self, part: str, seen: Any = None) -> dict[str, int]:
        """Give one part of every pool, by the pool's name, over all NUMA nodes."""
        found: dict[str, int] = {}
        for pool in (seen or self.capacity()).pools:
            found[pool.name] = found.get(pool.name, 0) + getattr(pool, part)
        return found

    def unheld(self, seen: Any = None) -> dict[str, int]:
        """Give what nobody holds of every pool: free, or being overwritten, which a node does at times of its own."""
        seen = seen or self.capacity()
        scrubbing = self.amounts("scrubbing", seen)
        return {pool: free + scrubbing[pool] for pool, free in self.amounts("free", seen).items()}

    def books(self, seen: Any = None) -> dict[str, dict[str, int]]:
        """Give every pool as calls alone change it: what nobody holds, and each state of what somebody does."""
        seen = seen or self.capacity()
        return {"unheld": self.unheld(seen), **{part: self.amounts(part, seen) for part in HELD}}

    def changes_nothing(self, look: Callable[[], object], what: str) -> None:
        """Demand that the node is as it was after something; what it does by itself may come between now and then.

        Raises:
            Broken: It is another every time.
        """
        end = time.monotonic() + SETTLE_S
        while True:
            before = self.capacity()
            look()
            after = self.capacity()
            if after.sequence == before.sequence or time.monotonic() > end:
                break
        equal((after.sequence, after.pools), (before.sequence, before.pools), f"sequence and pools after {what}")

    def fill(self) -> list[Lease]:
        """Take all there is, until nothing of a page's length is granted.

        Raises:
            Skipped: The node is too large for that.
            Broken: What the node says it would grant is refused.
        """
        taken: list[Lease] = []
        while (most := self.capacity().largest_grant_tokens) and len(taken) < MOST_LEASES:
            taken.append(self.lease(prompt_tokens=most, wait=OVERWRITTEN))
        if len(taken) >= MOST_LEASES:
            raise Skipped(f"the node is not full after {MOST_LEASES} leases")
        return taken

    def clean_up(self) -> None:
        """Give back whatever the case took.

        Raises:
            Broken: Something cannot be given back.
        """
        taken, self._taken = self._taken, {}
        for tenant in (self.tenant, self.other_tenant):
            taken |= {lease.id: tenant for lease in self._listed(tenant)}
        failures = []
        for lease_id, tenant in taken.items():
            try:
                self.wire.call("Release", admission_pb2.ReleaseRequest(lease_id=lease_id, tenant=tenant))
            except Refused as refused:
                failures.append(str(refused))
        check(not failures, f"what the case took could not be given back: {'; '.join(failures[:3])}")
        self._taken.clear()

    def _listed(self, tenant: str) -> list[Lease]:
        try:
            return list(self.wire.call("ListLeases", tenant=tenant, page_size=1000).leases)
        except Refused:
            return []  # the leases that were seen are known all the same

    def check_nothing_held(self) -> None:
        """Demand of a node that was idle before the case that nothing is held after it.

        Raises:
            Broken: Something is.
        """
        pools = self.call("GetCapacity").pools
        held = {f"{pool.name}.{part}": getattr(pool, part) for pool in pools for part in HELD if getattr(pool, part)}
        check(not held, f"every lease was released, and still the node holds {held}")
