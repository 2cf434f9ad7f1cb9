"""Whether a service keeps the promises of `hisparse.v1`: a suite of cases that runs against any address.

::

    cases/<method>.py ──► CASES ──► run(target) ──► Report: JSON, JUnit XML
                                       │
                     Server: plain gRPC calls, laws on every answer, every lease released after its case

It reads nothing but the wire, so it judges any implementation: this one, a proxy before it, or yours. What a service
does not have is skipped with the reason. It runs under tenants of its own, and drains nothing unless that is allowed.

>>> import hisparse_svc
>>> from hisparse_svc import conformance
>>> with hisparse_svc.Node.embedded(host_pool="1GiB", backing="none") as node:
...     report = conformance.run(node.target, only=["commit.*"])
>>> report.conforms, report.counts()["failed"]
(True, 0)

Not to be confused with `hisparse_svc.testing`, which judges what swaps rows in on a GPU.
"""

from __future__ import annotations

from hisparse_svc.conformance import cases as _cases
from hisparse_svc.conformance.case import CASES, Case
from hisparse_svc.conformance.needs import NEEDS
from hisparse_svc.conformance.report import OUTCOMES, Report, Result
from hisparse_svc.conformance.rules import RULES
from hisparse_svc.conformance.run import run

__all__ = ["CASES", "NEEDS", "OUTCOMES", "RULES", "Case", "Report", "Result", "run"]

del _cases
