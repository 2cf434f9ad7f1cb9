// Sparse MLA decode for many heads: HEADS = 32 or 64 a block. Stored rows are the register operand of wgmma, so no
// second copy of a tile is written to shared memory.
//
//   SCORERS warpgroups   scores   Sᵀ (64 tokens × heads) = K Qᵀ, softmax, weights P to shared memory
//   2 warpgroups         values   Oᵀ (256 dimensions each × heads) += Vᵀ P
//   1 warpgroup          producers, one bulk copy a row ──► ring of UNITS × 32 raw rows; a tile is two units
//
//   one scorer    tile i: wait rows ─ K Qᵀ ─ let values of i − 1 go ─ softmax ─ P (two buffers)
//                         values: Vᵀ P of i − 1, then its rows are free
//   two scorers   take tiles in turn, so that the products of one run during the softmax of the other. What a softmax
//                 starts from, the tops of all earlier tiles, is handed on from tile to tile (TOPS_DONE): a scorer takes
//                 it over when its products are done, and hands it on before it computes exponentials.
//
// FP8: on the way to the operand a K row is multiplied by f16(scale / 2^e), 2^e at least the row's largest scale, its RoPE
// part by 2^-e, and the logit by 2^e in fp32; a V row by f16(scale / n), where n is a power of two per scale group that
// follows the largest scale. Both round by 2^-11 and no more.
//
// Blocks of a cluster exchange tops and sums first, then normalised outputs in halves through distributed shared memory;
// each finishes a SPLITS-th of the output, in a fixed order, so results repeat bit by bit.
#include "decode.cuh"
#include "wgmma.cuh"

constexpr int TILE = 64, UNIT = 32, COLUMNS8 = HEADS / 8;
constexpr int GROUP = 128;                                   // threads of a warpgroup
constexpr int CONSUMERS = (SCORERS + 2) * GROUP;
static_assert(SCORERS == 1 || SCORERS == 2, "a scorer owns one or both buffers of weights");
static_assert(HEADS == 32 || HEADS == 64, "one wgmma wide");
static_assert(UNITS % 2 == 0, "a tile is two units side by side");
static_assert(THREADS == CONSUMERS + GROUP, "scorers, values, producers");
constexpr int ENTRY_REGISTERS = 65536 / THREADS / 8 * 8;     // of a thread, before warpgroups trade them
constexpr float QUERY_FACTOR = FP8 ? 1.f / 16 : 1.f;         // bf16 queries into f16's range
constexpr float NO_TOP = -1e30f;                             // finite, so that differences are never NaN
// Whether the values may start on a tile at once. With more than two tiles in the ring they wait until the products of the
// next scores no longer compete; with two, rows must be free soon, or the next tile is late (57 us became 100).
constexpr bool VALUES_AT_ONCE = SCORERS == 2 || UNITS == 4;
constexpr float MOVE = 8.f;                                  // tops are looked at again when a logit exceeds one by this

constexpr int QUERY_BLOCK = HEADS * 128;                     // 64 numbers of all heads
constexpr int WEIGHT_BYTES = TILE * HEADS * 2;
constexpr int UNIT_BYTES = UNIT * ROW_PITCH;
constexpr int QUERY = 0;
constexpr int WEIGHTS = QUERY + 9 * QUERY_BLOCK;             // two tiles
constexpr int RING = WEIGHTS + 2 * WEIGHT_BYTES;
constexpr int TOKEN_SCALES = RING + UNITS * UNIT_BYTES;      // f16 [2 tiles][scale group][token]: scale / n
constexpr int MASKS = TOKEN_SCALES + 2 * SCALE_GROUPS * TILE * 2;
constexpr int TOPS = MASKS + UNITS * UNIT * 4;               // [head]
constexpr int KEPT = TOPS + HEADS * 4;                       // [2 tiles][head]: what older sums are multiplied by
constexpr int SHRINK = KEPT + 2 * HEADS * 4;                 // [2 tiles][scale group]: and, outputs, by this
constexpr int NORMALISERS = SHRINK + 2 * SCALE_GROUPS * 4;   // [scale group]: n
constexpr int MOVED = NORMALISERS + SCALE_GROUPS * 4;        // [2 tiles]: whether there is anything to multiply
constexpr int PARTIAL = MOVED + 16;                          // [warp][head]
constexpr int PARTIAL_SCALES = PARTIAL + SCORERS * 4 * HEADS * 4;      // [warp][scale group]
constexpr int FACTORS = PARTIAL_SCALES + 4 * SCALE_GROUPS * 4;   // [head]: 1 / denominator
constexpr int FULL = FACTORS + HEADS * 4;
constexpr int EMPTY = FULL + 8 * UNITS;
constexpr int WEIGHTS_FULL = EMPTY + 8 * UNITS, WEIGHTS_EMPTY = WEIGHTS_FULL + 16;
constexpr int TOPS_DONE = WEIGHTS_EMPTY + 16;                // [2 tiles]
constexpr int FAR_SUMS = TOPS_DONE + 16;                 // [block][head]: top, sum
constexpr int FAR_NORMALISERS = FAR_SUMS + SPLITS * HEADS * 8;
constexpr int END = FAR_NORMALISERS + SPLITS * SCALE_GROUPS * 4;
static_assert(END <= SHARED_BYTES, "shared memory");

constexpr int PAIRS = 2 * COLUMNS8;                          // of 16-byte output fragments, per thread of the values
constexpr int PAIRS_PER_BLOCK = (PAIRS + SPLITS - 1) / SPLITS;
static_assert(SPLITS * PAIRS_PER_BLOCK * 2 * GROUP * 16 <= TOKEN_SCALES, "exchanged outputs fit in what tiles leave");

__device__ __forceinline__ void scorer_meets(int scorer) {
  asm volatile("bar.sync %0, %1;" ::"r"(scorer + 1), "n"(GROUP) : "memory");
}
__device__ __forceinline__ bool any_of_scorer(int scorer, bool mine) {
  int any = mine;
  asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %0, 0; barrier.cta.red.or.pred q, %1, %2, p; selp.b32 %0, 1, 0, q; }"
               : "+r"(any)
               : "r"(scorer + 1), "n"(GROUP)
               : "memory");
  return any;
}
__device__ __forceinline__ void scorers_meet() { meet<3, SCORERS * GROUP>(); }
__device__ __forceinline__ void consumers_meet() { meet<4, CONSUMERS>(); }
// After it, other blocks' shared memory may be written: all threads of the cluster have met their block's barriers.
__device__ __forceinline__ void cluster_started() {
  if constexpr (SPLITS > 1) {
    __syncwarp();
    cluster_wait();
  }
}
__device__ __forceinline__ void all_meet() {                 // of the cluster
  if constexpr (SPLITS == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

constexpr int ROWS_PER_WARP = UNIT / 4;
// This lane's pick of a unit: lanes below ROWS_PER_WARP have one row each.
__device__ __forceinline__ int lane_pick(const Call& call, const Share& share, int unit, int warp, int lane) {
  const bool busy = lane < ROWS_PER_WARP && unit < 2 * share.end;
  return busy ? pick_at(call, share, unit * UNIT + warp * ROWS_PER_WARP + lane) : -1;
}

// `current`, `next`: picks of the first units, loaded before the block met so that the first rows start early.
__device__ __forceinline__ void produce(const Call& call, const Share& share, u32 shared, int current, int next, int warp,
                                        int lane) {
  const int row = warp * ROWS_PER_WARP + lane;
  int slot = 0, parity = 1;
#pragma unroll 1
  for (int unit = 2 * share.begin; unit < 2 * share.end; unit++) {
    const int later = lane_pick(call, share, unit + 2, warp, lane);
    barrier_wait(shared + EMPTY + 8 * slot, parity);
    if (lane < ROWS_PER_WARP)
      fetch_row(call, current, shared + RING + slot * UNIT_BYTES + row * ROW_PITCH, shared + MASKS + (slot * UNIT + row) * 4,
                shared + FULL + 8 * slot);
    __syncwarp();
    current = next, next = later;
    if (++slot == UNITS) slot = 0, parity ^= 1;
  }
}

// By 3 × GROUP threads: queries to shared memory, nine blocks of 64 numbers, rows of 128 bytes. FP8 rows come to the operand four numbers a
// thread, so their latent numbers lie in that order: 0 1 4 5 8 9 12 13 | 2 3 6 7 10 11 14 15 of 16.
__device__ __forceinline__ void load_query(const Call& call, const Share& share, u32 shared, int thread) {
  constexpr int PIECES = HEADS * KEY / 16, LOADS = PIECES / (3 * GROUP);
  static_assert(LOADS * 3 * GROUP == PIECES, "whole rounds");
  uint4 x[LOADS][2];
#pragma unroll
  for (int l = 0; l < LOADS; l++) {
    const int piece = thread + l * 3 * GROUP, head = piece / 36, at = piece % 36 * 16;
    const bool real = share.first_head + head < call.heads;
    const uint4* from = (const uint4*)(call.q + ((i64)share.query * call.heads + share.first_head + head) * KEY + at);
    x[l][0] = real ? __ldg(from) : make_uint4(0, 0, 0, 0);
    x[l][1] = real ? __ldg(from + 1) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int l = 0; l < LOADS; l++) {
    const int piece = thread + l * 3 * GROUP, head = piece / 36, c = piece % 36;
    const u32 in[8] = {x[l][0].x, x[l][0].y, x[l][0].z, x[l][0].w, x[l][1].x, x[l][1].y, x[l][1].z, x[l][1].w};
    u32 out[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if constexpr (!FP8) {
        out[i] = in[i];
      } else {
        const float low = low_bf16(in[i]) * QUERY_FACTOR, high = high_bf16(in[i]) * QUERY_FACTOR;
        if (c < LATENT / 16) out[i % 2 * 4 + i / 2] = pack_f16(low, high);
        else out[i] = pack_bf16(low, high);
      }
    }
    const u32 row = shared + QUERY + c / 4 * QUERY_BLOCK + head * 128;
    const int first = c % 4 * 2, swizzle = head % 8;
    store_u32x4(row + ((first ^ swizzle) << 4), out[0], out[1], out[2], out[3]);
    store_u32x4(row + (((first + 1) ^ swizzle) << 4), out[4], out[5], out[6], out[7]);
  }
  products_see_stores();
}

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

// The same of FP8 rows: 2 batches of RoPE, 16 of latent numbers; raw bytes are loaded one batch ahead of their conversion.
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
  const int tiles = share.end - share.begin;
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
    products_see_stores();
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

// Two neighbouring dimensions of one head (FP8), or dimensions 8 apart (BF16).
__device__ __forceinline__ void store_pair(bf16* to, float x, float y) {
  const u32 pair = pack_bf16(x, y);
  if constexpr (FP8) *(u32*)to = pair;
  else to[0] = (bf16)pair, to[8] = (bf16)(pair >> 16);
}

__device__ __forceinline__ void value(const Call& call, const Share& share, u32 shared, int thread) {
  const int part = thread / GROUP, w = thread % GROUP / WARP, lane = thread % WARP, g = lane / 4, t = lane % 4;
  load_query(call, share, shared, GROUP + thread);
  cluster_started();
  consumers_meet();
  float o[4][4 * COLUMNS8];                                  // 16 dimensions a warp of each of four
#pragma unroll
  for (int a = 0; a < 4; a++)
#pragma unroll
    for (int z = 0; z < 4 * COLUMNS8; z++) o[a][z] = 0.f;
  const u64 weights = b_of_columns<HEADS * 2>(shared + WEIGHTS);
  const u32 lane_row = FP8 ? lane % 16 * ROW_PITCH + part * 256 + w * 32 + lane / 16 * 16
                           : (lane % 8 + lane / 16 * 8) * ROW_PITCH + (part * 256 + w * 32) * 2 + lane / 8 % 2 * 16;
  const int tiles = share.end - share.begin;
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < tiles; i++) {
    const int buffer = i % 2;
    barrier_wait(shared + FULL + 8 * slot, parity);
    barrier_wait(shared + FULL + 8 * slot + 8, parity);
    barrier_wait(shared + WEIGHTS_FULL + 8 * buffer, (i / 2) & 1);
    const u32 tile = shared + RING + slot * UNIT_BYTES + lane_row;
    const u32 scales = shared + TOKEN_SCALES + buffer * SCALE_GROUPS * TILE * 2 + part * 2 * TILE * 2 + t * 4;
    if (load_u32(shared + MOVED + buffer * 4)) {
      const float2 shrink = load_f32x2(shared + SHRINK + (buffer * 4 + 2 * part) * 4);
#pragma unroll
      for (int j = 0; j < COLUMNS8; j++) {
        const float2 kept = load_f32x2(shared + KEPT + (buffer * HEADS + 8 * j + 2 * t) * 4);
#pragma unroll
        for (int a = 0; a < 4; a++) {
          const float n = a < 2 ? shrink.x : shrink.y;
          o[a][4 * j] *= kept.x * n, o[a][4 * j + 1] *= kept.y * n;
          o[a][4 * j + 2] *= kept.x * n, o[a][4 * j + 3] *= kept.y * n;
        }
      }
    }
    u32 a[2][2][4];
#pragma unroll
    for (int step = 0; step < 8; step++) {                   // 16 tokens, one half of this warpgroup's dimensions
      const int k = step / 2, half = step % 2;
      if constexpr (FP8) {
        u32 raw[4];
        load_matrices_transposed(raw, tile + k * 16 * ROW_PITCH + half * 128);
        const u32 scale0 = load_u32(scales + half * TILE * 2 + k * 32), scale1 = load_u32(scales + half * TILE * 2 + k * 32 + 16);
        products_wait<1>();
#pragma unroll
        for (int z = 0; z < 2; z++) {
          u32(&x)[4] = a[step & 1][z];
          e4m3x4_to_f16(__byte_perm(raw[2 * z], 0, 0x3120), x[0], x[1]);
          e4m3x4_to_f16(__byte_perm(raw[2 * z + 1], 0, 0x3120), x[2], x[3]);
          x[0] = multiply_f16x2(x[0], scale0), x[1] = multiply_f16x2(x[1], scale0);
          x[2] = multiply_f16x2(x[2], scale1), x[3] = multiply_f16x2(x[3], scale1);
        }
      } else {
        products_wait<1>();
#pragma unroll
        for (int z = 0; z < 2; z++)
          load_matrices_transposed(a[step & 1][z], tile + k * 16 * ROW_PITCH + (half * 128 + z * 16) * 2);
      }
      if (step == 3 || step == 7) {                          // the rows of a unit are in registers
        __syncwarp();
        if (lane == 0) barrier_arrive(shared + EMPTY + 8 * (slot + step / 4));
      }
      products_fence();
      const u64 b = weights + ((buffer * WEIGHT_BYTES + k * 16 * HEADS * 2) >> 4);
#pragma unroll
      for (int z = 0; z < 2; z++) multiply_async<FP8 ? F16 : BF16, true>(o[2 * half + z], a[step & 1][z], b, 1);
      products_commit();
    }
    products_wait<0>();
    if (lane == 0) barrier_arrive(shared + WEIGHTS_EMPTY + 8 * buffer);
    slot += 2;
    if (slot == UNITS) slot = 0, parity ^= 1;
  }
  all_meet();
  consumers_meet();

  float2 n = FP8 ? load_f32x2(shared + NORMALISERS + 8 * part) : make_float2(1.f, 1.f);
  const auto out_of = [&](int a, int j) {                    // where head 2 t of column j, first dimension of o[a] is
    const int dim = part * 256 + a / 2 * 128 + w * 32 + a % 2 * 16 + (FP8 ? 2 * g : g);
    return call.out + ((i64)share.query * call.heads + share.first_head + 8 * j + 2 * t) * LATENT + dim;
  };
  const auto real = [&](int j, int z) { return share.first_head + 8 * j + 2 * t + z < call.heads; };
  if constexpr (SPLITS == 1) {
#pragma unroll
    for (int j = 0; j < COLUMNS8; j++) {
      const float2 factor = load_f32x2(shared + FACTORS + (8 * j + 2 * t) * 4);
#pragma unroll
      for (int a = 0; a < 4; a++) {
        const float f0 = factor.x * (a < 2 ? n.x : n.y), f1 = factor.y * (a < 2 ? n.x : n.y);
        if (real(j, 0)) store_pair(out_of(a, j), o[a][4 * j] * f0, o[a][4 * j + 2] * f0);
        if (real(j, 1)) store_pair(out_of(a, j) + LATENT, o[a][4 * j + 1] * f1, o[a][4 * j + 3] * f1);
      }
    }
    return;
  } else {
    const int rank = share.split;
    float2 common = make_float2(1.f, 1.f);                   // the cluster's normaliser: f16 holds parts relative to it
    if constexpr (FP8) {
      common = make_float2(0.f, 0.f);
#pragma unroll
      for (int r = 0; r < SPLITS; r++)
        common = max2(common, load_f32x2(shared + FAR_NORMALISERS + (r * SCALE_GROUPS + 2 * part) * 4));
      n.x *= power_inverse(common.x), n.y *= power_inverse(common.y);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS8; j += 2) {
      const float2 first = load_f32x2(shared + FACTORS + (8 * j + 2 * t) * 4);
      const float2 second = load_f32x2(shared + FACTORS + (8 * j + 8 + 2 * t) * 4);
#pragma unroll
      for (int a = 0; a < 4; a++) {
        const float m = a < 2 ? n.x : n.y;
        const float* v = &o[a][4 * j];
        const int pair = a * (COLUMNS8 / 2) + j / 2, owner = pair / PAIRS_PER_BLOCK, at = pair % PAIRS_PER_BLOCK;
        store_far_u32x4(in_block(shared + ((rank * PAIRS_PER_BLOCK + at) * 2 * GROUP + thread) * 16, owner),
                        pack_half(v[0] * first.x * m, v[2] * first.x * m), pack_half(v[1] * first.y * m, v[3] * first.y * m),
                        pack_half(v[4] * second.x * m, v[6] * second.x * m),
                        pack_half(v[5] * second.y * m, v[7] * second.y * m));
      }
    }
    all_meet();
#pragma unroll
    for (int at = 0; at < PAIRS_PER_BLOCK; at++) {
      const int pair = rank * PAIRS_PER_BLOCK + at;
      if (pair >= PAIRS) break;
      const int a = pair / (COLUMNS8 / 2), j = pair % (COLUMNS8 / 2) * 2;
      float2 sum[4] = {};
#pragma unroll
      for (int r = 0; r < SPLITS; r++) {
        const float4 parts = load_f32x4(shared + ((r * PAIRS_PER_BLOCK + at) * 2 * GROUP + thread) * 16);
        const float part4[4] = {parts.x, parts.y, parts.z, parts.w};
#pragma unroll
        for (int z = 0; z < 4; z++) {
          const float2 v = unpack_half(__float_as_uint(part4[z]));
          sum[z].x += v.x, sum[z].y += v.y;
        }
      }
      const float m = a < 2 ? common.x : common.y;
#pragma unroll
      for (int z = 0; z < 4; z++)
        if (real(j + z / 2, z % 2)) store_pair(out_of(a, j + z / 2) + z % 2 * LATENT, sum[z].x * m, sum[z].y * m);
    }
  }
}

extern "C" __global__ void
#if SPLITS > 1
__cluster_dims__(SPLITS, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
decode_many(const bf16* q, const u8* rows, const int* picks, const int* counts, const float* sink, bf16* out, float* lse,
            i64 row_pitch, int heads, int top_k, int n_rows, float scale_log2) {
  extern __shared__ __align__(1024) u8 memory[];
  const Call call = {q, rows, picks, counts, sink, out, lse, row_pitch, heads, top_k, n_rows, scale_log2};
  const u32 shared = shared_address(memory);
  const int thread = threadIdx.x, warpgroup = thread / GROUP;
  const Share share = share_of_block<TILE, HEADS>(call);
  if (thread == 0) {
    for (int s = 0; s < UNITS; s++) {
      barrier_init(shared + FULL + 8 * s, UNIT);
      barrier_init(shared + EMPTY + 8 * s, 8);
    }
    for (int s = 0; s < 2; s++) {
      barrier_init(shared + WEIGHTS_FULL + 8 * s, 4);
      barrier_init(shared + WEIGHTS_EMPTY + 8 * s, 8);
      barrier_init(shared + TOPS_DONE + 8 * s, 4);
    }
    barrier_init_done();
  }
  if (thread < HEADS) store_f32(shared + TOPS + thread * 4, NO_TOP);
  if (thread < SCALE_GROUPS) store_f32(shared + NORMALISERS + thread * 4, 0.f);
  const int producer = warp_id() - CONSUMERS / WARP, lane = thread % WARP;
  const int first = producer >= 0 ? lane_pick(call, share, 2 * share.begin, producer, lane) : -1;
  const int second = producer >= 0 ? lane_pick(call, share, 2 * share.begin + 1, producer, lane) : -1;
  __syncthreads();
  if constexpr (SPLITS > 1) cluster_arrive_relaxed();
  if (producer >= 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    produce(call, share, shared, first, second, producer, lane);
    cluster_started();
    all_meet();
    if constexpr (SPLITS > 1) all_meet();
  } else if (warpgroup < SCORERS) {
    if (SCORE_REGISTERS < ENTRY_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SCORE_REGISTERS));
    score(call, share, shared, SCORERS == 1 ? 0 : warpgroup, thread % GROUP);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(VALUE_REGISTERS));
    value(call, share, shared, thread - SCORERS * GROUP);
  }
}
