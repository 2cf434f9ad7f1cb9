// What the kernels of sparse MLA decode share: the stored row, the work of a block, and how a query's part is finished.
//
//   grid     [ query 0: heads 0-15 │ heads 16-31 │ … ][ query 1: … ]          SPLITS blocks (a cluster) each
//   block    picks of its query, its share of the tiles                        tile: TILE consecutive picks
//
// With LATE, a query has more picks whose rows the kernel in front, the gather, is still writing. They come last: a
// block's share of their tiles follows its share of the others, and its producers wait for that kernel in between.
#pragma once
#include "hopper.cuh"

constexpr int LATENT = 512, ROPE = 64, KEY = LATENT + ROPE, SCALE_GROUPS = 4;
constexpr bool FP8 = ROW_BYTES == 656;
static_assert(FP8 || ROW_BYTES == 1152, "rows are e4m3 with scales, or bf16");

// Rows in shared memory: a pitch of 16 bytes more than a multiple of 128 keeps matrix loads free of bank conflicts.
constexpr int ROW_PITCH = FP8 ? ROW_BYTES : ROW_BYTES + 16;
constexpr int VALUE_BYTES = FP8 ? 1 : 2;
constexpr int SCALES_AT = LATENT;
constexpr int ROPE_AT = FP8 ? LATENT + 4 * SCALE_GROUPS : 2 * LATENT;

#define INFINITY __int_as_float(0x7F800000)                   // the compiler at run time has no math.h
constexpr float LN2 = 0.6931471805599453f, LOG2E = 1.4426950408889634f;
constexpr float LAZY = 4.f;                                  // a maximum moves only when logits (base 2) exceed it by this
constexpr float LAZY_SCALE = 16.f;                           // and a scales' normaliser, by this factor

struct Call {                                               // its members are the kernels' parameters, in this order
  const bf16* q;                                             // [query][heads][KEY]
  const u8* rows;                                            // [n_rows], row_pitch bytes apart
  const int* picks;                                          // [query][top_k]
  const int* counts;                                         // [query], or null: top_k each
  const float* sink;                                         // [heads], or null
  bf16* out;                                                 // [query][heads][LATENT]
  float* lse;                                                // [query][heads]
  i64 row_pitch;
  int heads, top_k, n_rows;
  float scale_log2;                                          // logits in base 2: their scale times log2(e)
  const int *late, *late_counts;                             // as picks and counts
};
#define CALL_PARAMETERS                                                                                                \
  const bf16 *q, const u8 *rows, const int *picks, const int *counts, const float *sink, bf16 *out, float *lse,        \
      i64 row_pitch, int heads, int top_k, int n_rows, float scale_log2, const int *late, const int *late_counts
#define CALL                                                                                                           \
  { q, rows, picks, counts, sink, out, lse, row_pitch, heads, top_k, n_rows, scale_log2, late, late_counts }

struct Share {                                               // what a block has of its query's picks
  int query, first_head;
  int first, stop, end;                                      // of the picks, in tiles 0 .. end
  int late_first, late_stop, last;                           // of the late ones, in tiles end .. last
  int split;                                                 // which block of the cluster
};
// Which query, heads and block of a cluster this is: computed anew at each call.
template <int BLOCK_HEADS>
__device__ __forceinline__ void place_block(const Call& call, Share& share) {
  int block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  const int item = block / SPLITS, head_blocks = (call.heads + BLOCK_HEADS - 1) / BLOCK_HEADS;
  share.split = block % SPLITS;
  share.query = item / head_blocks;
  share.first_head = item % head_blocks * BLOCK_HEADS;
}
// The same number of picks each, to one, and whole tiles of late ones: blocks that have a late tile less have as many of
// the other picks more. A block's first tile is the short one: its rows are there soonest, and what follows is as late as
// the memory, not as its products.
template <int TOKENS, int BLOCK_HEADS, int LATE_TOKENS = TOKENS>   // of a tile, and of a late one
__device__ __forceinline__ Share share_of_block(const Call& call) {
  Share share;
  place_block<BLOCK_HEADS>(call, share);
  const int picks = call.counts ? min(max(call.counts[share.query], 0), call.top_k) : call.top_k;
  int late_tiles = 0, evened = 0;                            // late tiles that others' picks even out
  share.late_first = share.late_stop = 0;
  if (LATE) {
    const int late_picks = min(max(call.late_counts[share.query], 0), call.top_k);
    late_tiles = (late_picks + LATE_TOKENS - 1) / LATE_TOKENS;
    share.late_first = share.split * late_tiles / SPLITS * LATE_TOKENS;
    share.late_stop = min((share.split + 1) * late_tiles / SPLITS * LATE_TOKENS, late_picks);
    if (picks >= SPLITS * LATE_TOKENS) evened = late_tiles;
  }
  const auto first_of = [&](int split) {
    return split * (picks + evened * LATE_TOKENS) / SPLITS - split * evened / SPLITS * LATE_TOKENS;
  };
  share.first = first_of(share.split), share.stop = first_of(share.split + 1);
  share.end = (share.stop - share.first + TOKENS - 1) / TOKENS;
  share.last = share.end + (share.late_stop - share.late_first + LATE_TOKENS - 1) / LATE_TOKENS;
  return share;
}
// Of a tile, or of one of its PARTS: the one of that number, which has TOKENS picks. Negative where the share has none.
template <int TOKENS, int PARTS = 1, int LATE_TOKENS = TOKENS>
__device__ __forceinline__ int pick_at(const Call& call, const Share& share, int part, int token) {
  if (LATE && part >= PARTS * share.end) {
    const int position = share.late_stop - (PARTS * share.last - part) * LATE_TOKENS + token;
    const bool there = part < PARTS * share.last && position >= share.late_first;
    return there ? call.late[(i64)share.query * call.top_k + position] : -1;
  }
  const int position = share.stop - (PARTS * share.end - part) * TOKENS + token;
  const bool there = part < PARTS * share.end && position >= share.first;
  return there ? call.picks[(i64)share.query * call.top_k + position] : -1;
}
// By producers in front of a tile, and behind the last one: no block ends before the kernel in front of it has.
__device__ __forceinline__ void wait_if_late(const Share& share, int tile) {
  if (LATE && tile == share.end) wait_for_previous_kernel();
}
__device__ __forceinline__ bool is_row(const Call& call, int pick) { return (u32)pick < (u32)call.n_rows; }

// By a warp, each of whose first ROWS lanes that has a `place` starts the copy of a row into the ring. What is no row gets
// zeros, whose products are finite, and -inf in the mask that is added to its logit. The warp stores the zeros: if they
// were copied, all blocks would ask one place of the L2 for them.
template <int ROWS>
__device__ __forceinline__ void fetch_rows(const Call& call, bool place, int pick, u32 row_at, u32 mask_at, u32 barrier) {
  const bool row = is_row(call, pick);
  if (place) store_f32(mask_at, row ? 0.f : -INFINITY);
  if (place && row) {
    barrier_arrive_expecting(barrier, ROW_BYTES);
    copy_row(row_at, call.rows + pick * call.row_pitch, ROW_BYTES, barrier);
  }
  const u32 none = __ballot_sync(ALL_LANES, place && !row);
  if (none) {
    constexpr int LANES = WARP / ROWS;                       // that share a row
    const int lane = lane_id(), of = lane / LANES, first = lane % LANES * 16;
    const u32 to = __shfl_sync(ALL_LANES, row_at, of);
    if (none >> of & 1)
#pragma unroll
      for (int at = 0; at < ROW_BYTES; at += LANES * 16)
        if (at + first < ROW_BYTES) store_u32x4(to + at + first, 0, 0, 0, 0);
    async_follows_stores();
    __syncwarp();
    if (none >> lane & 1) barrier_arrive(barrier);
  }
}

// 1 / (sum of exponentials, the sink's among them): what unnormalised outputs relative to `top` are multiplied by.
__device__ __forceinline__ float denominator_inverse(const Call& call, int head, float top, float sum) {
  if (!(sum > 0.f)) return sum == 0.f ? 0.f : sum;           // nothing selected gives 0; a NaN stays one
  if (call.sink && head < call.heads) sum += exp2_fast(call.sink[head] * LOG2E - top);
  return 1.f / sum;
}
__device__ __forceinline__ float natural_lse(float top, float sum) { return (top + log2f(sum)) * LN2; }
