"""Every CUDA kernel once, on small shapes: what a sanitizer is given to watch.

`make sanitize-gpu` runs it under compute-sanitizer, which slows kernels a hundredfold. Whether results are right is for
the tests to say; here kernels only run, each at the splits that have a code path of their own.

racecheck sees the barriers of a block, and not those in shared memory that count bytes (`mbarrier`): it calls every
row of a ring a race between its copy and its readers. So it is given the kernels without a ring (`barriers`); the
others are held to the same bits in every replay by the tests, and to memcheck here (`accesses`).

Under memcheck a warp that has arrived at the barrier of its cluster runs no further until all others have: two
warpgroups of which one arrives and then lets the other go, which arrives later, never end, whatever else they do. The
warpgroups of `decode_wide.cu` do that, so here it is compiled to arrive where it waits.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from hisparse_svc.engine import MLA_BF16, MLA_FP8, HotCache, RowFormat, attend_hits_first, back_up, swap_in
from hisparse_svc.kernels import Geometry, HostRows, SplitPicks, append, index_top_k, merge_lse
from hisparse_svc.kernels.cuda import decode
from hisparse_svc.kernels.cuda.decode_shapes import block_shapes
from hisparse_svc.kernels.decode.call import make_call
from hisparse_svc.kernels.split import PickPart

from tests.kernels.decode_cases import SCALE, make
from tests.kernels.index_cases import index_case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hisparse_svc.kernels.cuda.decode_shapes import BlockShape
    from hisparse_svc.kernels.decode.call import DecodeCall

SHORT = Geometry(seats=3, hot_rows=256, top_k=96, query_rows=2, context_tokens=2048)
LONG = Geometry(seats=3, hot_rows=256, top_k=96, context_tokens=70_000)
"""Too long for the resolver with a table."""


def decode_to_watch(call: DecodeCall, shape: BlockShape, splits: int) -> None:
    """A decode whose warps arrive at their cluster's barrier where they wait for it."""
    plain = decode.kernel_constants

    def constants(shape: BlockShape, splits: int, *, late: bool = False) -> tuple[tuple[str, int], ...]:
        return (*plain(shape, splits, late=late), ("ARRIVES_TO_WAIT", 1))

    decode.kernel_constants = constants
    try:
        decode.sparse_mla_decode(call, shape=shape, splits=splits)
    finally:
        decode.kernel_constants = plain


def decodes() -> Iterator[str]:
    """Sparse MLA decode: every block, alone and in a cluster, with and without late picks."""
    for kind in ("fp8", "bf16"):
        for shape in block_shapes(kind):
            case = make(kind, shape.heads, batch=2, top_k=300, rows=512).to("cuda")
            call = make_call(**case.arguments(), scale=SCALE, out=None, lse=None, max_sms=0)
            late = PickPart(call.picks.flip(-1).contiguous(), torch.full((2, 1), 40, dtype=torch.int32, device="cuda"))
            for splits in (1, 3):
                decode_to_watch(call, shape, splits)
                yield f"{shape.source} {kind} {shape.heads} heads, {splits} splits"
                decode_to_watch(replace(call, late=late), shape, splits)
                yield f"{shape.source} {kind} {shape.heads} heads, {splits} splits, late picks"


def merges() -> Iterator[str]:
    """Two parts, merged."""
    part = (torch.randn((2, 1, 8, 512)).bfloat16().cuda(), torch.randn((2, 1, 8)).cuda())
    merge_lse([part, part])
    yield "merge.cu"


def swap_ins(geometry: Geometry, row_format: RowFormat, *, attention: bool) -> Iterator[str]:
    """Append, resolve, gather, attention beside it, backup."""
    cache = HotCache(geometry, [2], row_format, "cuda")
    host = HostRows.allocate(geometry.seats * geometry.map_pages, 2, row_format.row_bytes, pinned=True)
    for seat in range(geometry.seats):
        first = seat * geometry.map_pages
        cache.take_seat(seat, list(range(first, first + geometry.map_pages)), geometry.context_tokens - 10)
    cache.plan.seats[:] = torch.tensor([1, -1, 0], dtype=torch.int32)
    split = SplitPicks.allocate(geometry, geometry.seats, "cuda")
    q = torch.randn((geometry.seats, geometry.query_rows, 8, 576)).bfloat16().cuda()
    new = torch.zeros((geometry.seats, geometry.query_rows, row_format.row_bytes), dtype=torch.uint8).cuda()
    for step in range(3):
        tokens = torch.stack(
            [torch.randperm(200)[: geometry.top_k] + 40 * step for _ in range(q.shape[0] * q.shape[1])]
        )
        cache.plan.picks.copy_(tokens.view(cache.plan.picks.shape).int())
        append(geometry, cache.rows[0][0], cache.state, cache.plan, new)
        if attention:
            attend_hits_first(cache, 0, host, split, q, scale=SCALE, first_layers=1)
        else:
            swap_in(cache, 0, host, split=split)
        back_up(cache, 0, host).wait()
    what = "append, resolve, gather, attention, backup" if attention else "append, resolve, gather, backup"
    yield f"{what}: {row_format.name}, {geometry.context_tokens} tokens"


def top_ks() -> Iterator[str]:
    """Top-k of scores that are spread, and of scores that are all alike."""
    for name, scores in {"spread": torch.randn, "alike": torch.zeros}.items():
        for query_rows in (1, 2):
            case = index_case([3000, 70, 0, 1], query_rows=query_rows, device="cuda")
            case.logits.copy_(scores(case.logits.shape))
            index_top_k(case.geometry, case.state, case.plan, case.logits)
            yield f"index_top_k.cu: {name}, {query_rows} query rows"


def logits() -> Iterator[str]:
    """Scores of the indexer."""
    for name, options in {"one": {}, "drafts": {"query_rows": 2}, "few heads": {"heads": 8}}.items():
        index_case([3000, 70, 0, 1], device="cuda", **options).logits_by("cuda")
        yield f"index_logits.cu: {name}"


def main() -> None:
    """Run them, saying which is done."""
    torch.manual_seed(0)
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    everything = what != "barriers"
    sources = [
        merges(),
        swap_ins(SHORT, MLA_FP8, attention=everything),
        swap_ins(LONG, MLA_BF16, attention=everything),
        top_ks(),
        *([logits(), decodes()] if everything else []),
    ]
    for source in sources:
        for done in source:
            torch.cuda.synchronize()
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
