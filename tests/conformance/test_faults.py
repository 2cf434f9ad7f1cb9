"""The suite bites: each fault planted in a service is found by the cases that are about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hisparse_svc import Client, conformance

from tests.conformance import faults
from tests.conformance.faulty import Fault, Faulty

if TYPE_CHECKING:
    from pathlib import Path

    from tests.serve.conftest import Served

FAULTS = [
    each for each in vars(faults).values() if isinstance(each, type) and issubclass(each, Fault) and each is not Fault
]


def test_without_a_fault_it_conforms(ledger_only: Served, tmp_path: Path) -> None:
    with Faulty(ledger_only.target, tmp_path / "p.sock", Fault()) as proxy:
        report = conformance.run(proxy.target, destructive=True)
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
