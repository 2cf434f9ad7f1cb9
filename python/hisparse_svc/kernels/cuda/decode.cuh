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

// What is read where there is no row: its products must be finite, so that a weight of 0 makes them 0.
__device__ __align__(16) u8 zero_row[ROW_BYTES];

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

struct Share {
  int query, first_head, picks, begin, end;                  // tiles begin .. end of the query's first `picks` picks
  int late_picks, late_begin, last;                          // then, up to `last`, late ones, from their tile late_begin on
  int split;                                                 // which block of the cluster
};
template <int TOKENS, int BLOCK_HEADS, int LATE_TOKENS = TOKENS>   // of a tile, and of a late one
__device__ __forceinline__ Share share_of_block(const Call& call) {
  const int item = blockIdx.x / SPLITS, head_blocks = (call.heads + BLOCK_HEADS - 1) / BLOCK_HEADS;
  Share share;
  share.split = blockIdx.x % SPLITS;
  share.query = item / head_blocks;
  share.first_head = item % head_blocks * BLOCK_HEADS;
  share.picks = call.counts ? min(max(__ldg(call.counts + share.query), 0), call.top_k) : call.top_k;
  const int tiles = (share.picks + TOKENS - 1) / TOKENS;
  share.begin = share.split * tiles / SPLITS;
  share.end = share.last = (share.split + 1) * tiles / SPLITS;
  share.late_picks = share.late_begin = 0;
  if (LATE) {
    share.late_picks = min(max(__ldg(call.late_counts + share.query), 0), call.top_k);
    const int late_tiles = (share.late_picks + LATE_TOKENS - 1) / LATE_TOKENS, split = SPLITS - 1 - share.split;
    share.late_begin = split * late_tiles / SPLITS;          // the other way round, where the others' shares are smaller
    share.last += (split + 1) * late_tiles / SPLITS - share.late_begin;
  }
  return share;
}
__device__ __forceinline__ int pick_at(const Call& call, const Share& share, int position) {
  return position < share.picks ? __ldg(call.picks + (i64)share.query * call.top_k + position) : -1;
}
// Of a tile, or of one of its PARTS: the one of that number, which has TOKENS picks.
template <int TOKENS, int PARTS = 1, int LATE_TOKENS = TOKENS>
__device__ __forceinline__ int pick_at(const Call& call, const Share& share, int part, int token) {
  if (LATE && part >= PARTS * share.end) {
    const int position = (part - PARTS * (share.end - share.late_begin)) * LATE_TOKENS + token;
    const bool there = part < PARTS * share.last && position < share.late_picks;
    return there ? __ldg(call.late + (i64)share.query * call.top_k + position) : -1;
  }
  return part < PARTS * share.end ? pick_at(call, share, part * TOKENS + token) : -1;
}
// By producers in front of a tile, and behind the last one: no block ends before the kernel in front of it has.
__device__ __forceinline__ void wait_if_late(const Share& share, int tile) {
  if (LATE && tile == share.end) wait_for_previous_kernel();
}
__device__ __forceinline__ bool is_row(const Call& call, int pick) { return (u32)pick < (u32)call.n_rows; }

// Starts the copy of one row into the ring; what is no row gets zeros, and -inf in the mask that is added to its logit.
__device__ __forceinline__ void fetch_row(const Call& call, int pick, u32 row_at, u32 mask_at, u32 barrier) {
  const bool row = is_row(call, pick);
  store_f32(mask_at, row ? 0.f : -INFINITY);
  barrier_arrive_expecting(barrier, ROW_BYTES);
  copy_row(row_at, row ? call.rows + pick * call.row_pitch : zero_row, ROW_BYTES, barrier);
}

// 1 / (sum of exponentials, the sink's among them): what unnormalised outputs relative to `top` are multiplied by.
__device__ __forceinline__ float denominator_inverse(const Call& call, int head, float top, float sum) {
  if (!(sum > 0.f)) return sum == 0.f ? 0.f : sum;           // nothing selected gives 0; a NaN stays one
  if (call.sink && head < call.heads) sum += exp2_fast(__ldg(call.sink + head) * LOG2E - top);
  return 1.f / sum;
}
__device__ __forceinline__ float natural_lse(float top, float sum) { return (top + log2f(sum)) * LN2; }
