// Blocks of few heads (decode_few.cu): what lies where in shared memory, how rows get there, and the logits of a tile.
//
//   scores of a group    [ warp 0's quarter │ 1 │ 2 │ 3 ]     each [head of 8][token][head], two buffers
#pragma once
#include "decode.cuh"

constexpr int TILE = 32, NH = HEADS / 8;
constexpr int ROWS_PER_WARP = TILE / PRODUCERS;
// Late tiles are half as large: late rows are few, and all else waits for the blocks that have them.
constexpr int LATE_TILE = TILE / 2, LATE_ROWS_PER_WARP = ROWS_PER_WARP / 2;
static_assert(LATE_TILE % 16 == 0, "whole products");
constexpr int GROUP_THREADS = 128, CONSUMERS = GROUPS * GROUP_THREADS;
constexpr int PREFETCH = 4;                                  // tiles whose picks a producer has loaded ahead
static_assert(THREADS == CONSUMERS + PRODUCERS * WARP, "threads");
// Otherwise a group could wait two phases ahead of a stage's barrier, where a wait for a parity passes at once.
static_assert(STAGES % GROUPS == 0, "a stage is always consumed by the same group");

constexpr int STAGE_BYTES = TILE * ROW_PITCH;
constexpr int QUARTER = NH * TILE * 8;                       // logits of one warp: [head of 8][token][head]
constexpr int SCORE_BYTES = 4 * QUARTER * 4;
constexpr int FRAGMENTS = 1024 * NH;                         // float4 of a block's output
constexpr int CHUNK = (FRAGMENTS + SPLITS - 1) / SPLITS;     // those that one block of the cluster finishes

constexpr int RING = 0;
constexpr int SCORES = RING + STAGES * STAGE_BYTES;          // two per group
constexpr int MASKS = SCORES + GROUPS * 2 * SCORE_BYTES;
constexpr int FULL = MASKS + STAGES * TILE * 4;
constexpr int EMPTY = FULL + 8 * STAGES;
constexpr int FAR_PARTS = (EMPTY + 8 * STAGES + 15) / 16 * 16;   // written by other blocks of the cluster
constexpr int FAR_SUMS = FAR_PARTS + (SPLITS > 1 ? SPLITS * CHUNK * 16 : 0);
constexpr int END = FAR_SUMS + (SPLITS > 1 ? SPLITS * HEADS * 8 : 0);
constexpr int GROUP_SUMS = GROUPS * FRAGMENTS * 16;          // at merging, the ring holds the groups' parts and these
static_assert(GROUP_SUMS + GROUPS * HEADS * 8 <= FULL, "the groups' parts fit in what tiles leave");
static_assert(END <= SHARED_BYTES, "shared memory");

__device__ __forceinline__ void group_meets(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
}
__device__ __forceinline__ void consumers_meet() { meet<15, CONSUMERS>(); }

__device__ __forceinline__ bool is_late(const Share& share, int tile) { return LATE && tile >= share.end; }
// This lane's pick of a tile: lanes below ROWS_PER_WARP have one row each, of a late tile half as many.
__device__ __forceinline__ int lane_pick(const Call& call, const Share& share, int tile, int warp, int lane) {
  const int rows = is_late(share, tile) ? LATE_ROWS_PER_WARP : ROWS_PER_WARP;
  const bool busy = lane < rows && tile < share.last;
  return busy ? pick_at<TILE, 1, LATE_TILE>(call, share, tile, warp * rows + lane) : -1;
}

// `ahead`: picks of the first tiles, loaded before the block met so that the first rows start early.
__device__ __forceinline__ void produce(const Call& call, const Share& share, u32 shared, int (&ahead)[PREFETCH], int warp,
                                        int lane) {
  int stage = 0, parity = 1;
  for (int start = 0; start < share.last; start += PREFETCH) {
#pragma unroll
    for (int p = 0; p < PREFETCH; p++) {
      const int tile = start + p;
      if (tile >= share.last) break;
      wait_if_late(share, tile);
      const int current = ahead[p];
      ahead[p] = lane_pick(call, share, tile + PREFETCH, warp, lane);
      barrier_wait(shared + EMPTY + 8 * stage, parity);
      const int rows = is_late(share, tile) ? LATE_ROWS_PER_WARP : ROWS_PER_WARP, row = warp * rows + lane;
      fetch_rows<ROWS_PER_WARP>(call, lane < rows, current, shared + RING + stage * STAGE_BYTES + row * ROW_PITCH,
                 shared + MASKS + (stage * TILE + row) * 4, shared + FULL + 8 * stage);
      if (lane >= rows && lane < ROWS_PER_WARP) barrier_arrive(shared + FULL + 8 * stage);   // a late tile has fewer
      __syncwarp();
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  }
  wait_if_late(share, share.last);
}

// A warp's quarter of the queries, as B fragments.
struct Query {
  u32 latent[NH][8][2], rope[NH][2];
  float power[NH][2];                                        // FP8: what the f16 numbers were divided by, per head pair
};
__device__ __forceinline__ void load_query(Query& query, const Call& call, const Share& share, int w, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int nh = 0; nh < NH; nh++) {
    const int head = share.first_head + nh * 8 + g;
    const bool real = head < call.heads;
    const bf16* from = call.q + ((i64)share.query * call.heads + (real ? head : 0)) * KEY;
    const auto pair = [&](int at) { return real ? *(const u32*)(from + at) : 0u; };
    query.rope[nh][0] = pair(LATENT + w * 16 + 2 * t);
    query.rope[nh][1] = pair(LATENT + w * 16 + 2 * t + 8);
    if constexpr (!FP8) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) query.latent[nh][j][half] = pair(w * 128 + j * 16 + half * 8 + 2 * t);
      query.power[nh][0] = query.power[nh][1] = 1.f;
    } else {
      uint2 raw[8];
      float most = 0.f;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        raw[j] = real ? *(const uint2*)(from + w * 128 + j * 16 + t * 4) : make_uint2(0, 0);
        most = fmaxf(most, fmaxf(fabsf(low_bf16(raw[j].x)), fabsf(high_bf16(raw[j].x))));
        most = fmaxf(most, fmaxf(fabsf(low_bf16(raw[j].y)), fabsf(high_bf16(raw[j].y))));
      }
      most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
      most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
      const float power = power_above(most), inverse = power_inverse(power);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        query.latent[nh][j][0] = pack_f16(low_bf16(raw[j].x) * inverse, high_bf16(raw[j].x) * inverse);
        query.latent[nh][j][1] = pack_f16(low_bf16(raw[j].y) * inverse, high_bf16(raw[j].y) * inverse);
      }
      query.power[nh][0] = __shfl_sync(ALL_LANES, power, t * 8);
      query.power[nh][1] = __shfl_sync(ALL_LANES, power, t * 8 + 4);
    }
  }
}

// A warp's quarter of the logits of one tile's first `tokens`, masks added by the first warp, to shared memory.
__device__ __forceinline__ void multiply_keys(const Query& query, u32 tile, int tokens, u32 masks, u32 scores, int w,
                                              int lane) {
  const int g = lane / 4, t = lane % 4;
  const u32 lane_row = (((lane >> 3) & 1) * 8 + (lane & 7)) * ROW_PITCH + (lane >> 4) * 16;
#pragma unroll
  for (int m = 0; m < TILE / 16; m++) {
    if (m * 16 >= tokens) break;
    const u32 rows = tile + m * 16 * ROW_PITCH;
    float s[NH][4] = {}, s2[NH][4] = {};                     // two chains for one column of heads
    const auto add = [&](const u32(&a)[4], int j) {
#pragma unroll
      for (int nh = 0; nh < NH; nh++) {
        float(&d)[4] = NH == 1 && j % 2 ? s2[nh] : s[nh];
        if constexpr (FP8) multiply_f16(d, a, query.latent[nh][j][0], query.latent[nh][j][1]);
        else multiply_bf16(d, a, query.latent[nh][j][0], query.latent[nh][j][1]);
      }
    };
    if constexpr (FP8) {
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        u32 r[4], a[4];
        load_matrices(r, rows + lane_row + w * 128 + j * 16);
        e4m3x4_to_f16(r[0], a[0], a[2]);
        e4m3x4_to_f16(r[1], a[1], a[3]);
        add(a, j);
        e4m3x4_to_f16(r[2], a[0], a[2]);
        e4m3x4_to_f16(r[3], a[1], a[3]);
        add(a, j + 1);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++) {
        u32 a[4];
        load_matrices(a, rows + lane_row + w * 256 + j * 32);
        add(a, j);
      }
    }
    const u32 first = rows + g * ROW_PITCH, second = first + 8 * ROW_PITCH;
    const float scale0 = FP8 ? load_f32(first + SCALES_AT + 4 * w) : 1.f;
    const float scale1 = FP8 ? load_f32(second + SCALES_AT + 4 * w) : 1.f;
    const float mask0 = w == 0 ? load_f32(masks + (m * 16 + g) * 4) : 0.f;
    const float mask1 = w == 0 ? load_f32(masks + (m * 16 + g + 8) * 4) : 0.f;
    u32 rope[4];
    load_matrices(rope, rows + lane_row + ROPE_AT + w * 32);
#pragma unroll
    for (int nh = 0; nh < NH; nh++) {
      if (NH == 1)
#pragma unroll
        for (int z = 0; z < 4; z++) s[nh][z] += s2[nh][z];
      s[nh][0] = fmaf(s[nh][0] * scale0, query.power[nh][0], mask0);
      s[nh][1] = fmaf(s[nh][1] * scale0, query.power[nh][1], mask0);
      s[nh][2] = fmaf(s[nh][2] * scale1, query.power[nh][0], mask1);
      s[nh][3] = fmaf(s[nh][3] * scale1, query.power[nh][1], mask1);
      multiply_bf16(s[nh], rope, query.rope[nh][0], query.rope[nh][1]);
      const u32 at = scores + (w * QUARTER + nh * TILE * 8 + (m * 16 + g) * 8 + 2 * t) * 4;
      store_f32x2(at, s[nh][0], s[nh][1]);
      store_f32x2(at + 8 * 8 * 4, s[nh][2], s[nh][3]);
    }
  }
}

// The sum of the four quarters for this warp's eight tokens, in base 2, and their maxima per head.
__device__ __forceinline__ void add_quarters(u32 scores, float scale_log2, int w, int lane) {
  constexpr int TOKENS = TILE / 4;
#pragma unroll
  for (int nh = 0; nh < NH; nh++) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < TOKENS / 4; j++) {
      const u32 at = scores + (nh * TILE * 8 + w * TOKENS * 8 + j * 32 + lane) * 4;
      const float sum = (load_f32(at) + load_f32(at + QUARTER * 4)) +
                        (load_f32(at + 2 * QUARTER * 4) + load_f32(at + 3 * QUARTER * 4));
      const float logit = sum * scale_log2;
      most = fmaxf(most, logit);
      store_f32(at, logit);
    }
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 8));
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 16));
    if (lane < 8) store_f32(scores + (QUARTER + nh * TILE * 8 + w * TOKENS * 8 + lane) * 4, most);
  }
}
