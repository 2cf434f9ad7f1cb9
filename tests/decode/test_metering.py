"""What a metered session counts is what its steps resolved, and the service's metrics say it."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

import hisparse_svc
from hisparse_svc.engine import (
    MLA_BF16,
    DecodeSession,
    DecodeShape,
    Geometry,
    HostCopy,
    HostPool,
    Overlap,
    SwapInUsage,
)

from tests.decode.plain import PlainRequest, PlainStep

if TYPE_CHECKING:
    from hisparse_svc.engine import LayerStep

GROUPS = (1, 2)
SHAPE = DecodeShape(Geometry(seats=3, hot_rows=64, top_k=16, context_tokens=512), GROUPS, MLA_BF16, 24)


class Tallied(PlainStep):
    """A step that adds up for itself what each group picked and missed."""

    def __init__(self, session: DecodeSession, requests: list[Any], batch: int, tally: list[list[int]]) -> None:
        super().__init__(session, requests, batch, exact_attention=True)
        self.tally = tally

    def __call__(self, step: LayerStep) -> None:
        fetch = step._fetch

        def tallied(group: int) -> None:
            fetch(group)
            missing = int(step.plan.counts.sum())
            self.tally[group][0] += int((step.plan.rows >= 0).sum()) - missing
            self.tally[group][1] += missing

        step._fetch = tallied  # type: ignore[method-assign]
        super().__call__(step)


def decoded(
    device: str, tokens: int, steps: int, overlap: Overlap = Overlap.PREFETCH
) -> tuple[DecodeSession, list[list[int]]]:
    host = HostCopy.allocate(SHAPE, pinned=device != "cpu")
    session = DecodeSession(SHAPE, host, device, overlap=overlap, metered=True)
    plain = PlainRequest.make(session, tokens + steps, 1)
    plain.running = session.join(pages=list(range(8)))
    for layer in range(session.shape.layers):
        group, place = session.shape.place(layer)
        on = session.memory.cache.device
        keys = plain.keys[group, :tokens].to(on) if place == 0 else None
        session.prefill(plain.running, layer, plain.rows[layer, :tokens].to(on), keys=keys)
    session.prefilled(plain.running, tokens)
    tally = [[0, 0] for _ in GROUPS]
    for _ in range(steps):
        with session.step([plain.running], batch=2) as step:
            Tallied(session, [plain], 2, tally)(step)
    return session, tally


def test_the_meter_counts_what_was_resolved_and_begins_again(device: str) -> None:
    session, tally = decoded(device, 300, 6)
    assert session.meter is not None
    assert session.meter.steps == 6
    row_bytes = SHAPE.row_format.row_bytes
    wanted = [
        SwapInUsage(group, hit * layers, miss * layers, miss * layers * row_bytes)
        for group, ((hit, miss), layers) in enumerate(zip(tally, GROUPS, strict=True))
    ]
    assert all(usage.miss_rows > 0 for usage in wanted), "300 tokens do not fit 64 hot rows"
    assert [usage.hit_rows + usage.miss_rows for usage in wanted] == [6 * 16 * layers for layers in GROUPS]
    assert list(session.meter.take()) == wanted
    assert session.meter.steps == 0
    assert all(usage.hit_rows == usage.miss_rows == 0 for usage in session.meter.take())


def test_every_way_to_overlap_counts_the_same(device: str) -> None:
    counts = []
    for overlap in Overlap:
        session, _ = decoded(device, 300, 3, overlap)
        assert session.meter is not None
        counts.append(session.meter.take())
    assert counts[0] == counts[1] == counts[2]
    assert all(usage.miss_rows > 0 for usage in counts[0])


def test_a_session_counts_only_where_it_is_told_to() -> None:
    assert DecodeSession(SHAPE, HostCopy.allocate(SHAPE), "cpu").meter is None


def test_what_is_reported_is_in_the_services_metrics() -> None:
    session, tally = decoded("cpu", 300, 2)
    assert session.meter is not None
    settings = {"host_pool": "256MiB", "http": "127.0.0.1:0"}
    with hisparse_svc.Node.embedded(**settings) as node, HostPool.attach(node.target) as pool:
        session.meter.report(pool, exposed_s=0.25)
        (address,) = [each for each in node.addresses if each.startswith("http")]
        with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
            page = answer.read().decode().splitlines()
    rows = "hisparse_swap_in_rows_total"
    for group, ((hit, miss), layers) in enumerate(zip(tally, GROUPS, strict=True)):
        assert f'{rows}{{layer_group="{group}",result="hit"}} {hit * layers}' in page
        assert f'{rows}{{layer_group="{group}",result="miss"}} {miss * layers}' in page
    assert "hisparse_swap_in_exposed_seconds_sum 0.250000" in page
    assert "hisparse_swap_in_exposed_seconds_count 2" in page
