"""Sparse MLA decode in Triton: the portable backend, for GPUs that the CUDA kernels are not written for.

::

    grid   queries × blocks of heads × splits        a program: its share of the picks, BLOCK_TOKENS at a time
    then   queries × heads                            splits merged by their log-sum-exp, in order; the sink last

FP8 rows are converted to BF16, which is exact; scales multiply logits and weights outside the products, a group of 128
at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from hisparse_svc.kernels.decode.rows import FP8_ROWS, LATENT_WIDTH

if TYPE_CHECKING:
    from hisparse_svc.kernels.decode.call import DecodeCall

__all__ = ["sparse_mla_decode"]

_MOST_SPLITS = 32
_BLOCK_TOKENS = 32
_LEAST_HEADS = 16  # a product's smallest side
_WARPS = 4


@triton.jit
def _values(base, offset: tl.constexpr, columns, row_real, fp8: tl.constexpr):
    """128 numbers of each row, as bf16; 0 where there is no row."""
    mask = row_real[:, None]
    if fp8:
        at = (base[:, None] + offset + columns[None, :]).to(tl.pointer_type(tl.float8e4nv))
        return tl.load(at, mask=mask, other=0.0).to(tl.bfloat16)
    at = (base[:, None] + 2 * (offset + columns[None, :])).to(tl.pointer_type(tl.bfloat16))
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _attend(  # noqa: PLR0915, PLR0917 - a kernel takes what it takes
    q,
    rows,
    picks,
    counts,
    out,
    lse,
    row_pitch,
    n_rows,
    heads,
    top_k,
    scale_log2,
    has_counts: tl.constexpr,
    fp8: tl.constexpr,
    splits: tl.constexpr,
    block_heads: tl.constexpr,
    block_tokens: tl.constexpr,
):
    query, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    head = tl.program_id(1) * block_heads + tl.arange(0, block_heads)
    real = (head < heads)[:, None]
    column, rope = tl.arange(0, 128), tl.arange(0, 64)
    at = q + (query * heads + head[:, None]) * 576
    q0 = tl.load(at + column[None, :], mask=real, other=0.0)
    q1 = tl.load(at + 128 + column[None, :], mask=real, other=0.0)
    q2 = tl.load(at + 256 + column[None, :], mask=real, other=0.0)
    q3 = tl.load(at + 384 + column[None, :], mask=real, other=0.0)
    q_rope = tl.load(at + 512 + rope[None, :], mask=real, other=0.0)
    o0 = tl.zeros((block_heads, 128), tl.float32)
    o1 = tl.zeros((block_heads, 128), tl.float32)
    o2 = tl.zeros((block_heads, 128), tl.float32)
    o3 = tl.zeros((block_heads, 128), tl.float32)
    top = tl.full((block_heads,), -1e30, tl.float32)  # finite, so that differences are never NaN
    total = tl.zeros((block_heads,), tl.float32)
    count = top_k
    if has_counts:
        count = tl.minimum(tl.maximum(tl.load(counts + query), 0), top_k)
    tiles = tl.cdiv(count, block_tokens)
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        position = tile * block_tokens + tl.arange(0, block_tokens)
        pick = tl.load(picks + query * top_k + position, mask=position < count, other=-1)
        row = (pick >= 0) & (pick < n_rows)
        base = rows + tl.where(row, pick, 0).to(tl.int64) * row_pitch
        k0 = _values(base, 0, column, row, fp8)
        k1 = _values(base, 128, column, row, fp8)
        k2 = _values(base, 256, column, row, fp8)
        k3 = _values(base, 384, column, row, fp8)
        rope_at: tl.constexpr = 528 if fp8 else 1024
        at_rope = (base[:, None] + rope_at + 2 * rope[None, :]).to(tl.pointer_type(tl.bfloat16))
        k_rope = tl.load(at_rope, mask=row[:, None], other=0.0)
        s = tl.dot(q_rope, tl.trans(k_rope))
        if fp8:
            scale_at = (base + 512).to(tl.pointer_type(tl.float32))
            s0 = tl.load(scale_at, mask=row, other=0.0)
            s1 = tl.load(scale_at + 1, mask=row, other=0.0)
            s2 = tl.load(scale_at + 2, mask=row, other=0.0)
            s3 = tl.load(scale_at + 3, mask=row, other=0.0)
            s += tl.dot(q0, tl.trans(k0)) * s0[None, :] + tl.dot(q1, tl.trans(k1)) * s1[None, :]
            s += tl.dot(q2, tl.trans(k2)) * s2[None, :] + tl.dot(q3, tl.trans(k3)) * s3[None, :]
        else:
            s = tl.dot(q0, tl.trans(k0), s)
            s = tl.dot(q1, tl.trans(k1), s)
            s = tl.dot(q2, tl.trans(k2), s)
            s = tl.dot(q3, tl.trans(k3), s)
        s = tl.where(row[None, :], s * scale_log2, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        kept = tl.exp2(top - new_top)
        p = tl.exp2(s - new_top[:, None])
        total = total * kept + tl.sum(p, 1)
        top = new_top
        if fp8:
            o0 = tl.dot((p * s0[None, :]).to(tl.bfloat16), k0, o0 * kept[:, None])
            o1 = tl.dot((p * s1[None, :]).to(tl.bfloat16), k1, o1 * kept[:, None])
            o2 = tl.dot((p * s2[None, :]).to(tl.bfloat16), k2, o2 * kept[:, None])
            o3 = tl.dot((p * s3[None, :]).to(tl.bfloat16), k3, o3 * kept[:, None])
        else:
            half = p.to(tl.bfloat16)
            o0 = tl.dot(half, k0, o0 * kept[:, None])
            o1 = tl.dot(half, k1, o1 * kept[:, None])
            o2 = tl.dot(half, k2, o2 * kept[:, None])
            o3 = tl.dot(half, k3, o3 * kept[:, None])
    inverse = tl.where(total > 0, 1 / total, 0.0)[:, None]
    part = (query * heads + head) * splits + split
    to = out + part[:, None] * 512 + column[None, :]
    tl.store(to, o0 * inverse, mask=real)
    tl.store(to + 128, o1 * inverse, mask=real)
    tl.store(to + 256, o2 * inverse, mask=real)
    tl.store(to + 384, o3 * inverse, mask=real)
    tl.store(lse + part, tl.where(total > 0, top + tl.log2(total), float("-inf")), mask=head < heads)


@triton.jit
def _merge(parts, part_lse, sink, out, lse, heads, has_sink: tl.constexpr, splits: tl.constexpr):  # noqa: PLR0917
    item = tl.program_id(0).to(tl.int64)
    split, column = tl.arange(0, splits), tl.arange(0, 512)
    part = tl.load(part_lse + item * splits + split)
    top = tl.max(part, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(part - base)
    total = tl.sum(weight, 0)
    denominator = total
    if has_sink:
        denominator += tl.exp2(tl.load(sink + item % heads) * 1.4426950408889634 - base)
    value = tl.load(parts + (item * splits + split[:, None]) * 512 + column[None, :])
    merged = tl.sum(value * weight[:, None], 0) * tl.where(total > 0, 1 / denominator, 0.0)
    tl.store(out + item * 512 + column, merged.to(tl.bfloat16))
    tl.store(lse + item, (base + tl.log2(total)) * 0.6931471805599453)


def _splits(call: DecodeCall, head_blocks: int) -> int:
    """Programs of one query: a power of two that fills the GPU twice, and leaves each program two tiles."""
    sms = call.max_sms or torch.cuda.get_device_properties(call.q.device).multi_processor_count
    wanted = max(1, 2 * sms // (call.queries * head_blocks))
    tiles = max(1, call.top_k // (2 * _BLOCK_TOKENS))
    return 1 << (min(wanted, tiles, _MOST_SPLITS).bit_length() - 1)


def sparse_mla_decode(call: DecodeCall) -> None:
    """As `reference.sparse_mla_decode`, on the current stream; allocates the parts of its splits."""
    block_heads = min(32, max(_LEAST_HEADS, triton.next_power_of_2(call.heads)))
    head_blocks = -(-call.heads // block_heads)
    splits = _splits(call, head_blocks)
    items = call.queries * call.heads
    parts = torch.empty((items, splits, LATENT_WIDTH), dtype=torch.float32, device=call.q.device)
    part_lse = torch.empty((items, splits), dtype=torch.float32, device=call.q.device)
    with torch.cuda.device(call.q.device):
        _attend[call.queries, head_blocks, splits](
            call.q,
            call.rows,
            call.picks,
            call.counts,
            parts,
            part_lse,
            call.rows.stride(0),
            call.rows.shape[0],
            call.heads,
            call.top_k,
            call.scale * math.log2(math.e),
            has_counts=call.counts is not None,
            fp8=call.stored is FP8_ROWS,
            splits=splits,
            block_heads=block_heads,
            block_tokens=_BLOCK_TOKENS,
            num_warps=_WARPS,
        )
        _merge[(items,)](
            parts,
            part_lse,
            call.sink,
            call.out,
            call.lse,
            call.heads,
            has_sink=call.sink is not None,
            splits=splits,
            num_warps=_WARPS,
        )
