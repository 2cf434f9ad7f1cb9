// Blocks of many heads (decode_many.cu): the scorers' part, from rows to weights, and the sums over the cluster.
//
//   wait rows ─ Sᵀ = K Qᵀ ─ mask ─ [ tops: taken over ─ raised, seldom ─ handed on ] ─ exponentials ─ P ─►
#pragma once
#include "many_block.cuh"

// Halves of the products: f16 against FP8 rows, whose numbers are relative to normalisers; bf16 against BF16 rows, which
// may be of any size.
__device__ __forceinline__ u32 pack_half(float x, float y) { return FP8 ? pack_f16(x, y) : pack_bf16(x, y); }
__device__ __forceinline__ float2 unpack_half(u32 pair) {
  return FP8 ? unpack_f16(pair) : make_float2(low_bf16(pair), high_bf16(pair));
}

typedef float Logits[4 * COLUMNS8];                          // of column j: (row g, head 2 t), (g, 2 t + 1), (g + 8, ..) twice

// Sᵀ = K Qᵀ of BF16 rows: 18 batches of two steps of 16 numbers, operands loaded two batches ahead.
__device__ __forceinline__ void multiply_keys_bf16(Logits& s, u32 rows, u64 query) {
  u32 a[4][2][4];
  const auto load = [&](int batch) {
#pragma unroll
    for (int k = 0; k < 2; k++) load_matrices(a[batch % 4][k], rows + batch * 64 + k * 32);
  };
  load(0), load(1);
#pragma unroll
  for (int batch = 0; batch < 18; batch++) {
    products_fence();
#pragma unroll
    for (int k = 0; k < 2; k++)
      multiply_async<BF16, false>(s, a[batch % 4][k], query + ((batch / 2 * QUERY_BLOCK + batch % 2 * 64 + k * 32) >> 4),
                                  batch || k);
    products_commit();
    products_wait<2>();
    if (batch + 2 < 18) load(batch + 2);
  }
}

// The same of FP8 rows: 2 batches of RoPE, 16 of latent numbers; raw bytes are loaded a batch ahead of their conversion.
// inverse: 2^-e of this thread's two rows, as pairs of bf16; scale(row, group): scale / 2^e.
template <typename Scale>
__device__ __forceinline__ void multiply_keys_fp8(Logits& s, u32 rows, u64 query, u32 inverse0, u32 inverse1, Scale scale) {
  u32 a[3][2][4], raw[2][4];
  const auto scale_rope = [&](u32(&x)[4]) {
    x[0] = multiply_bf16x2(x[0], inverse0), x[1] = multiply_bf16x2(x[1], inverse1);
    x[2] = multiply_bf16x2(x[2], inverse0), x[3] = multiply_bf16x2(x[3], inverse1);
  };
#pragma unroll
  for (int b = 0; b < 2; b++)
#pragma unroll
    for (int k = 0; k < 2; k++) load_matrices(a[b][k], rows + ROPE_AT + b * 64 + k * 32);
  load_matrices(raw[0], rows);
  scale_rope(a[0][0]), scale_rope(a[0][1]);
  u32 half0 = 0, half1 = 0;
#pragma unroll
  for (int b = 0; b < 18; b++) {
    products_fence();
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int block32 = b < 2 ? LATENT / 32 + b : b - 2;
      const u64 q = query + ((block32 / 2 * QUERY_BLOCK + block32 % 2 * 64 + k * 32) >> 4);
      if (b < 2) multiply_async<BF16, false>(s, a[b % 3][k], q, b || k);
      else multiply_async<F16, false>(s, a[b % 3][k], q, 1);
    }
    products_commit();
    if (b >= 1 && b < 16) load_matrices(raw[b & 1], rows + b * 32);
    if (b == 17) break;
    if (b >= 1 && (b - 1) % 4 == 0) {
      const float scale0 = scale(0, (b - 1) / 4), scale1 = scale(1, (b - 1) / 4);
      half0 = pack_f16(scale0, scale0), half1 = pack_f16(scale1, scale1);
    }
    products_wait<2>();
#pragma unroll
    for (int k = 0; k < 2; k++) {
      u32(&x)[4] = a[(b + 1) % 3][k];
      if (b == 0) {
        scale_rope(x);
      } else {
        e4m3x4_to_f16(raw[(b - 1) & 1][2 * k], x[0], x[2]);
        e4m3x4_to_f16(raw[(b - 1) & 1][2 * k + 1], x[1], x[3]);
        x[0] = multiply_f16x2(x[0], half0), x[1] = multiply_f16x2(x[1], half1);
        x[2] = multiply_f16x2(x[2], half0), x[3] = multiply_f16x2(x[3], half1);
      }
    }
  }
}

// Over the lanes that share t: of each of two values the largest.
__device__ __forceinline__ float2 largest_over_rows(float x, float y) {
#pragma unroll
  for (int z = 4; z < 32; z *= 2) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, z));
    y = fmaxf(y, __shfl_xor_sync(ALL_LANES, y, z));
  }
  return make_float2(x, y);
}
__device__ __forceinline__ float2 max2(float2 x, float2 y) { return make_float2(fmaxf(x.x, y.x), fmaxf(x.y, y.y)); }

// Raises tops (and normalisers) that this tile exceeds, writes what older sums are to be multiplied by, and gives the
// tops to subtract. `scales`: thread's token, two scale groups.
__device__ __forceinline__ void raise_tops(const Logits& s, float factor0, float factor1, float2 scales, float2& normaliser,
                                           float (&total)[2 * COLUMNS8], float2 (&top)[COLUMNS8], u32 shared, int buffer,
                                           int scorer, int thread) {
  const int w = thread / WARP, lane = thread % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < COLUMNS8; j++) {
    const float2 most = largest_over_rows(fmaxf(s[4 * j] * factor0, s[4 * j + 2] * factor1),
                                          fmaxf(s[4 * j + 1] * factor0, s[4 * j + 3] * factor1));
    if (g == 0) store_f32x2(shared + PARTIAL + (w * HEADS + 8 * j + 2 * t) * 4, most.x, most.y);
  }
  if constexpr (FP8) {
#pragma unroll
    for (int z = 2; z < 32; z *= 2) {
      scales.x = fmaxf(scales.x, __shfl_xor_sync(ALL_LANES, scales.x, z));
      scales.y = fmaxf(scales.y, __shfl_xor_sync(ALL_LANES, scales.y, z));
    }
    if (lane < 2) store_f32x2(shared + PARTIAL_SCALES + (w * 4 + 2 * lane) * 4, scales.x, scales.y);
  }
  scorer_meets(scorer);
#pragma unroll
  for (int j = 0; j < COLUMNS8; j++) {
    const u32 at = (8 * j + 2 * t) * 4;
    float2 most = load_f32x2(shared + PARTIAL + at);
#pragma unroll
    for (int z = 1; z < 4; z++) most = max2(most, load_f32x2(shared + PARTIAL + z * HEADS * 4 + at));
    const float2 old = load_f32x2(shared + TOPS + at);
    top[j] = make_float2(most.x > old.x + LAZY ? most.x : old.x, most.y > old.y + LAZY ? most.y : old.y);
    const float kept0 = exp2_fast(old.x - top[j].x), kept1 = exp2_fast(old.y - top[j].y);
    total[2 * j] *= kept0, total[2 * j + 1] *= kept1;
    if (w == 0 && g == 0) store_f32x2(shared + KEPT + buffer * HEADS * 4 + at, kept0, kept1);
  }
  float shrink0 = 1.f, shrink1 = 1.f;
  if constexpr (FP8) {
    const int pair = thread % 2;
    float2 largest = load_f32x2(shared + PARTIAL_SCALES + pair * 8);
#pragma unroll
    for (int z = 1; z < 4; z++) largest = max2(largest, load_f32x2(shared + PARTIAL_SCALES + (z * 4 + 2 * pair) * 4));
    const auto raise = [](float largest_scale, float& n) {
      if (!(largest_scale > LAZY_SCALE * n)) return 1.f;
      const float power = power_above(largest_scale), shrink = n * power_inverse(power);
      n = power;
      return shrink;
    };
    shrink0 = raise(largest.x, normaliser.x), shrink1 = raise(largest.y, normaliser.y);
    if (thread < 2) store_f32x2(shared + NORMALISERS + 8 * thread, normaliser.x, normaliser.y);
  }
  if (thread < 2) store_f32x2(shared + SHRINK + (buffer * 4 + 2 * thread) * 4, shrink0, shrink1);
  scorer_meets(scorer);                                             // all have read the old tops
#pragma unroll
  for (int j = 0; j < COLUMNS8; j++)
    if (w == 0 && g == 0) store_f32x2(shared + TOPS + (8 * j + 2 * t) * 4, top[j].x, top[j].y);
  scorer_meets(scorer);
}

__device__ __forceinline__ void score(const Call& call, const Share& share, u32 shared, int scorer, int thread) {
  const int w = thread / WARP, lane = thread % WARP, g = lane / 4, t = lane % 4;
  if (scorer == 0) load_query(call, share, shared, thread);
  cluster_started();
  consumers_meet();
  float total[2 * COLUMNS8] = {};                            // of this thread's rows, per head
  const u64 query = b_of_rows(shared + QUERY);
  const u32 lane_row = (w * 16 + lane % 16) * ROW_PITCH + lane / 16 * 16;
  const float scale_log2 = call.scale_log2 / QUERY_FACTOR;
  const int tiles = share.last;
  const auto follow = [&](int tile) {                        // this thread's sums, after the other scorer raised tops
    if (!load_u32(shared + MOVED + tile % 2 * 4)) return;
#pragma unroll
    for (int j = 0; j < COLUMNS8; j++) {
      const float2 kept = load_f32x2(shared + KEPT + (tile % 2 * HEADS + 8 * j + 2 * t) * 4);
      total[2 * j] *= kept.x, total[2 * j + 1] *= kept.y;
    }
  };
  int slot = 2 * scorer, parity = 0;
#pragma unroll 1
  for (int i = scorer; i < tiles; i += SCORERS) {
    barrier_wait(shared + FULL + 8 * slot, parity);
    barrier_wait(shared + FULL + 8 * slot + 8, parity);
    const u32 tile = shared + RING + slot * UNIT_BYTES;
    const int buffer = i % 2;
    Logits s;
    float factor0 = scale_log2, factor1 = scale_log2;        // of this thread's rows g and g + 8
    if constexpr (FP8) {
      const u32 at = tile + (w * 16 + g) * ROW_PITCH + SCALES_AT;
      const auto power_of_row = [&](u32 from) {
        const float4 v = load_f32x4(from);
        return power_above(fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
      };
      const float power0 = power_of_row(at), power1 = power_of_row(at + 8 * ROW_PITCH);
      const float inverse0 = power_inverse(power0), inverse1 = power_inverse(power1);
      multiply_keys_fp8(s, tile + lane_row, query, pack_bf16(inverse0, inverse0), pack_bf16(inverse1, inverse1),
                        [&](int row, int group) {
                          return load_f32(at + row * 8 * ROW_PITCH + group * 4) * (row ? inverse1 : inverse0);
                        });
      factor0 *= power0, factor1 *= power1;
    } else {
      multiply_keys_bf16(s, tile + lane_row, query);
    }
    const u32 mask = shared + MASKS + (slot * UNIT + w * 16 + g) * 4;
    const float mask0 = load_f32(mask), mask1 = load_f32(mask + 8 * 4);
    products_wait<0>();
    if (!VALUES_AT_ONCE && i > 0 && lane == 0) barrier_arrive(shared + WEIGHTS_FULL + 8 * (buffer ^ 1));
    if (SCORERS == 2 && i > 0) {
      barrier_wait(shared + TOPS_DONE + 8 * (buffer ^ 1), ((i - 1) / 2) & 1);
      follow(i - 1);
    }
    if (__any_sync(ALL_LANES, mask0 < 0.f || mask1 < 0.f)) {
#pragma unroll
      for (int j = 0; j < COLUMNS8; j++) {
        if (mask0 < 0.f) s[4 * j] = s[4 * j + 1] = -INFINITY;
        if (mask1 < 0.f) s[4 * j + 2] = s[4 * j + 3] = -INFINITY;
      }
    }
    float x[4 * COLUMNS8], most = -INFINITY;
    const auto subtract = [&](int j, float2 top) {
      x[4 * j] = fmaf(s[4 * j], factor0, -top.x), x[4 * j + 1] = fmaf(s[4 * j + 1], factor0, -top.y);
      x[4 * j + 2] = fmaf(s[4 * j + 2], factor1, -top.x), x[4 * j + 3] = fmaf(s[4 * j + 3], factor1, -top.y);
    };
#pragma unroll
    for (int j = 0; j < COLUMNS8; j++) {
      subtract(j, load_f32x2(shared + TOPS + (8 * j + 2 * t) * 4));
      most = fmaxf(most, fmaxf(fmaxf(x[4 * j], x[4 * j + 1]), fmaxf(x[4 * j + 2], x[4 * j + 3])));
    }
    float2 scales = make_float2(0.f, 0.f), normaliser = make_float2(1.f, 1.f);
    if constexpr (FP8) {
      scales = load_f32x2(tile + thread / 2 * ROW_PITCH + SCALES_AT + thread % 2 * 8);
      normaliser = load_f32x2(shared + NORMALISERS + thread % 2 * 8);
    }
    const bool moved = any_of_scorer(
        scorer, most > MOVE || scales.x > LAZY_SCALE * normaliser.x || scales.y > LAZY_SCALE * normaliser.y);
    if (i >= 2) barrier_wait(shared + WEIGHTS_EMPTY + 8 * buffer, (i / 2 - 1) & 1);
    if (moved) {
      float2 top[COLUMNS8];
      raise_tops(s, factor0, factor1, scales, normaliser, total, top, shared, buffer, scorer, thread);
#pragma unroll
      for (int j = 0; j < COLUMNS8; j++) subtract(j, top[j]);
    }
    if (thread == 0) asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared + MOVED + buffer * 4), "r"((int)moved) : "memory");
    if (SCORERS == 2) {
      __syncwarp();
      if (lane == 0) barrier_arrive(shared + TOPS_DONE + 8 * buffer);
    }
    if constexpr (FP8) {
      const u32 at = shared + TOKEN_SCALES + buffer * SCALE_GROUPS * TILE * 2 + thread % 2 * 2 * TILE * 2 + thread / 2 * 2;
      const u32 pair = pack_f16(scales.x * power_inverse(normaliser.x), scales.y * power_inverse(normaliser.y));
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"((u16)pair) : "memory");
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + TILE * 2), "h"((u16)(pair >> 16)) : "memory");
    }
    const int row = w * 16 + lane % 16, swizzle = HEADS == 64 ? row % 8 : row / 2 % 4;
    const u32 weights = shared + WEIGHTS + buffer * WEIGHT_BYTES + row * HEADS * 2;
#pragma unroll
    for (int j = 0; j < COLUMNS8; j += 2) {
      float p[8];
#pragma unroll
      for (int z = 0; z < 8; z++) p[z] = exp2_fast(x[4 * j + z]);
      total[2 * j] += p[0] + p[2], total[2 * j + 1] += p[1] + p[3];
      total[2 * j + 2] += p[4] + p[6], total[2 * j + 3] += p[5] + p[7];
      store_matrices(weights + (((j + lane / 16) ^ swizzle) << 4), pack_half(p[0], p[1]), pack_half(p[2], p[3]),
                     pack_half(p[4], p[5]), pack_half(p[6], p[7]));
    }
    async_follows_stores();
    __syncwarp();
    if ((VALUES_AT_ONCE || i == tiles - 1) && lane == 0) barrier_arrive(shared + WEIGHTS_FULL + 8 * buffer);
    slot += 2 * SCORERS;
    if (slot >= UNITS) slot -= UNITS, parity ^= 1;
  }
  if (SCORERS == 2 && tiles > 0) {
    barrier_wait(shared + TOPS_DONE + 8 * ((tiles - 1) % 2), ((tiles - 1) / 2) & 1);
    if ((tiles - 1) % 2 != scorer) follow(tiles - 1);
  }

  // Sums of exponentials over the warps, then over the blocks.
#pragma unroll
  for (int j = 0; j < COLUMNS8; j++) {
    float sum0 = total[2 * j], sum1 = total[2 * j + 1];
#pragma unroll
    for (int z = 4; z < 32; z *= 2) {
      sum0 += __shfl_xor_sync(ALL_LANES, sum0, z);
      sum1 += __shfl_xor_sync(ALL_LANES, sum1, z);
    }
    if (g == 0) store_f32x2(shared + PARTIAL + ((scorer * 4 + w) * HEADS + 8 * j + 2 * t) * 4, sum0, sum1);
  }
  scorers_meet();
  thread += scorer * GROUP;                                  // the first scorer's threads do the rest
  const int rank = share.split;
  float own_top = NO_TOP, sum = 0.f;
  if (thread < HEADS) {
    own_top = load_f32(shared + TOPS + thread * 4);
#pragma unroll
    for (int z = 0; z < 4 * SCORERS; z++) sum += load_f32(shared + PARTIAL + (z * HEADS + thread) * 4);
  }
  if constexpr (SPLITS > 1) {
    for (int r = 0; r < SPLITS; r++) {
      if (thread < HEADS) store_far_f32x2(in_block(shared + FAR_SUMS + (rank * HEADS + thread) * 8, r), own_top, sum);
      if (thread < SCALE_GROUPS)
        store_far_f32(in_block(shared + FAR_NORMALISERS + (rank * SCALE_GROUPS + thread) * 4, r),
                      load_f32(shared + NORMALISERS + thread * 4));
    }
  }
  all_meet();
  if (thread < HEADS) {
    const int head = share.first_head + thread;
    float top = own_top;
    if constexpr (SPLITS > 1) {
      for (int r = 0; r < SPLITS; r++) top = fmaxf(top, load_f32(shared + FAR_SUMS + (r * HEADS + thread) * 8));
      sum = 0.f;
      for (int r = 0; r < SPLITS; r++) {
        const float2 part = load_f32x2(shared + FAR_SUMS + (r * HEADS + thread) * 8);
        sum += exp2_fast(part.x - top) * part.y;
      }
    }
    store_f32(shared + FACTORS + thread * 4, exp2_fast(own_top - top) * denominator_inverse(call, head, top, sum));
    if (rank == 0 && head < call.heads) call.lse[(i64)share.query * call.heads + head] = natural_lse(top, sum);
  }
  consumers_meet();
  if constexpr (SPLITS > 1) all_meet();
}
