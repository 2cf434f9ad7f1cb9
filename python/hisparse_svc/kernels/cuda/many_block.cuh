// Blocks of many heads (decode_many.cu): what lies where in shared memory, who meets whom, how rows and queries arrive.
#pragma once
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
// Whether the values may start on a tile at once. With more than two tiles in the ring they wait until the products of
// the next scores no longer compete; with two, rows must be free soon, or the next tile is late (57 us became 100).
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
  const bool busy = lane < ROWS_PER_WARP && unit < 2 * share.last;
  return busy ? pick_at<UNIT, 2>(call, share, unit, warp * ROWS_PER_WARP + lane) : -1;
}

// `current`, `next`: picks of the first units, loaded before the block met so that the first rows start early.
__device__ __forceinline__ void produce(const Call& call, const Share& share, u32 shared, int current, int next, int warp,
                                        int lane) {
  const int row = warp * ROWS_PER_WARP + lane;
  int slot = 0, parity = 1;
#pragma unroll 1
  for (int unit = 0; unit < 2 * share.last; unit++) {
    if (unit % 2 == 0) wait_if_late(share, unit / 2);
    const int later = lane_pick(call, share, unit + 2, warp, lane);
    barrier_wait(shared + EMPTY + 8 * slot, parity);
    fetch_rows<ROWS_PER_WARP>(call, lane < ROWS_PER_WARP, current, shared + RING + slot * UNIT_BYTES + row * ROW_PITCH,
               shared + MASKS + (slot * UNIT + row) * 4, shared + FULL + 8 * slot);
    __syncwarp();
    current = next, next = later;
    if (++slot == UNITS) slot = 0, parity ^= 1;
  }
  wait_if_late(share, share.last);
}

// By 3 × GROUP threads: queries to shared memory, nine blocks of 64 numbers, rows of 128 bytes. FP8 rows come to the
// operand four numbers a thread, so latent numbers lie in that order: 0 1 4 5 8 9 12 13 | 2 3 6 7 10 11 14 15 of 16.
__device__ __forceinline__ void load_query(const Call& call, const Share& share, u32 shared, int thread) {
  constexpr int PIECES = HEADS * KEY / 16, LOADS = PIECES / (3 * GROUP);
  static_assert(LOADS * 3 * GROUP == PIECES, "whole rounds");
  uint4 x[LOADS][2];
#pragma unroll
  for (int l = 0; l < LOADS; l++) {
    const int piece = thread + l * 3 * GROUP, head = piece / 36, at = piece % 36 * 16;
    const bool real = share.first_head + head < call.heads;
    const uint4* from = (const uint4*)(call.q + ((i64)share.query * call.heads + share.first_head + head) * KEY + at);
    x[l][0] = real ? from[0] : make_uint4(0, 0, 0, 0);
    x[l][1] = real ? from[1] : make_uint4(0, 0, 0, 0);
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
  async_follows_stores();
}
