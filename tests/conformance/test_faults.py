"""The suite bites: each fault planted in a service is found by the cases that are about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc import Client, conformance
from hisparse_svc._proto import capacity_pb2, types_pb2
from hisparse_svc.conformance import laws

from tests.conformance import faults
from tests.conformance.faulty import Fault, Faulty, Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.serve.conftest import Served

FAULTS = [
    each for each in vars(faults).values() if isinstance(each, type) and issubclass(each, Fault) and each is not Fault
]


EXACT = ("get_capacity", "health", "admit", "admit_full", "batch_admit", "extend", "release")
"""Methods whose cases count pages before and after a call."""


def test_without_a_fault_it_conforms(ledger_only: Served, tmp_path: Path) -> None:
    with Faulty(ledger_only.target, tmp_path / "p.sock", Fault()) as proxy:
        report = conformance.run(proxy.target, destructive=True)
    assert report.failures() == {}


class OverwritesByItself(Fault):
    """No fault: of what is free it overwrites some, of which nobody told it to, for five looks of every ten."""

    def shown(self, message: Any) -> None:
        own = isinstance(message, capacity_pb2.GetCapacityResponse)
        for capacity in [message] if own else laws.inside(message, types_pb2.Capacity.DESCRIPTOR.full_name):
            self.seen["looks"] = self.seen.get("looks", 0) + 1
            changes = self.seen["looks"] // 5
            capacity.sequence += changes
            for pool in capacity.pools:
                cleaned = min(16, pool.free) if pool.name == "host_pages" and changes % 2 else 0
                pool.free, pool.scrubbing = pool.free - cleaned, pool.scrubbing + cleaned

    def answered(self, name: str, request: Any, answer: Any) -> Any:
        del name, request
        self.shown(answer)
        return answer

    def refused(self, name: str, request: Any, refusal: Refusal) -> Refusal:
        del name, request
        for detail in refusal.status.details:
            capacity = types_pb2.Capacity()
            if detail.Unpack(capacity):
                self.shown(capacity)
                detail.Pack(capacity)
        return refusal


def test_a_node_that_overwrites_pages_at_times_of_its_own_conforms(ledger_only: Served, tmp_path: Path) -> None:
    with Faulty(ledger_only.target, tmp_path / "p.sock", OverwritesByItself()) as proxy:
        report = conformance.run(proxy.target, destructive=True, only=[f"{each}.*" for each in EXACT])
    assert report.failures() == {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: type[Fault], ledger_only: Served, tmp_path: Path) -> None:
    try:
        with Faulty(ledger_only.target, tmp_path / "p.sock", fault()) as proxy:
            report = conformance.run(proxy.target, destructive=True, only=fault.found_by)
    finally:
        with Client(ledger_only.target) as client:
            for lease in client.list_leases():
                client.release(lease.id, tenant=lease.tenant)
    assert {result.name: result.outcome for result in report.results} == dict.fromkeys(fault.found_by, "failed")


def test_many_faults_are_planted() -> None:
    assert len(FAULTS) >= 24
    assert all(fault.found_by for fault in FAULTS)
