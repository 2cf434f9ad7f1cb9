"""ReportUsage: how far each request has come. What it does for an engine, the engine's own tests show."""

from __future__ import annotations

from hisparse_svc.conformance.cases import engine_call

engine_call.register(__name__, "ReportUsage")
