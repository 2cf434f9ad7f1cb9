// Blocks of 64 heads (decode_wide.cu): how the parts of a cluster's blocks become output and log-sum-exp.
//
//   tops and sums                 of every block to every block ──► what its outputs are multiplied by
//   outputs as they are, in bf16  of every block, the columns that block n finishes, to block n, which adds them in order
//
// They land where queries lay. Who waits for them waits for their bytes: no block meets the others a second time, and
// none ends before what was sent to it is there.
#pragma once
#include "wide_block.cuh"

typedef float Output[2][64];                                 // of column j: (head g, dimensions 8 j + 2 t, + 1), (g + 8, ..)
__device__ __forceinline__ void rescale(Output& o, float kept0, float kept1) {
#pragma unroll
  for (int j = 0; j < 32; j++) {
    float* x = o[j / 16] + j % 16 * 4;
    x[0] *= kept0, x[1] *= kept0, x[2] *= kept1, x[3] *= kept1;
  }
}
constexpr int PIECES = 16;                                   // of 16 bytes: a thread's output, each 16 columns of two heads
constexpr int PIECES_PER_BLOCK = (PIECES + SPLITS - 1) / SPLITS;
constexpr int PIECE_BYTES = 2 * GROUP * 16;                  // of all threads
constexpr int RECEIVED = QUERY;                              // [other block][piece][thread]
constexpr int FACTORS = RECEIVED + (SPLITS - 1) * PIECES_PER_BLOCK * PIECE_BYTES;      // [block][head]
static_assert(FACTORS + SPLITS * HEADS * 4 <= TILES, "they fit where queries lay");
// Where tiles lay: this block's own part of what it finishes; and the whole of it, for each warp 16 heads in order.
constexpr int OWN = TILES, FINISHED = OWN + PIECES_PER_BLOCK * PIECE_BYTES;
constexpr int FINISHED_PITCH = PIECES_PER_BLOCK * 32 + 16, FINISHED_BYTES = 16 * FINISHED_PITCH;
static_assert(FINISHED + 2 * GROUP / WARP * FINISHED_BYTES <= WEIGHTS, "and these where tiles lay");

__device__ __forceinline__ int pieces_of(int split) { return min(PIECES_PER_BLOCK, PIECES - split * PIECES_PER_BLOCK); }
// Of what other blocks send to block `to`, the place of what `from` does.
__device__ __forceinline__ int place_of(int from, int to) { return from < to ? from : from - 1; }
__device__ __forceinline__ void expect_parts(u32 shared, int split) {
  barrier_arrive_expecting(shared + SUMS_IN, (SPLITS - 1) * HEADS * 8);
  barrier_arrive_expecting(shared + PARTS_IN, (SPLITS - 1) * pieces_of(split) * PIECE_BYTES);
}

// By the first warpgroup, from its tops and sums: what parts of outputs are multiplied by, and the log-sum-exp.
__device__ __forceinline__ void weigh(const Call& call, const Share& share, u32 shared, const float (&top)[2], float (&sum)[2],
                                      int thread) {
  const int w = thread / WARP, lane = thread % WARP;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 1);
    sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 2);
    const u32 at = shared + SUMS + (share.split * HEADS + w * 16 + lane / 4 + 8 * r) * 8;
    const int n = lane % 4;                                  // lanes of a head serve a block each
    if (n == share.split) store_f32x2(at, top[r], sum[r]);
    else if (n < SPLITS) send_far_f32x2(in_block(at, n), in_block(shared + SUMS_IN, n), top[r], sum[r]);
  }
  scorers_meet();
  if (SPLITS > 1) barrier_wait_far(shared + SUMS_IN, 0);
  float most = -INFINITY, all = 0.f;
  const int head = share.first_head + thread;
  if (thread < HEADS) {
    float2 parts[SPLITS];
#pragma unroll
    for (int n = 0; n < SPLITS; n++) parts[n] = load_f32x2(shared + SUMS + (n * HEADS + thread) * 8);
#pragma unroll
    for (int n = 0; n < SPLITS; n++) most = fmaxf(most, parts[n].x);
    const float base = most == -INFINITY ? 0.f : most;
#pragma unroll
    for (int n = 0; n < SPLITS; n++) all += exp2_fast(parts[n].x - base) * parts[n].y;
    const float inverse = denominator_inverse(call, head, base, all);
#pragma unroll
    for (int n = 0; n < SPLITS; n++)
      store_f32(shared + FACTORS + (n * HEADS + thread) * 4, exp2_fast(parts[n].x - base) * inverse);
  }
  consumers_meet();
  if (share.split == 0 && thread < HEADS && head < call.heads)
    call.lse[(i64)share.query * call.heads + head] = natural_lse(most, all);
}

// By the warpgroups of values: the output, or the columns of it that this block finishes.
__device__ __forceinline__ void finish(const Call& call, const Share& share, u32 shared, Output& o, int thread) {
  const int half = thread / GROUP, w = thread % GROUP / WARP, lane = thread % WARP, g = lane / 4;
  const auto factor = [&](int part, int r) { return load_f32(shared + FACTORS + (part * HEADS + w * 16 + g + 8 * r) * 4); };
  const int pieces = pieces_of(share.split);
  const u32 finished = shared + FINISHED + thread / WARP * FINISHED_BYTES, own = shared + OWN + thread * 16;
  const auto store = [&](int n, const float* v) {            // piece n of what this block finishes
    store_matrices(finished + lane % 16 * FINISHED_PITCH + (2 * n + lane / 16) * 16, pack_bf16(v[0], v[1]),
                   pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  };
  values_meet();                                             // nobody reads tiles any more
  if constexpr (SPLITS == 1) {
    consumers_meet();
    rescale(o, factor(0, 0), factor(0, 1));
#pragma unroll
    for (int n = 0; n < PIECES; n++) store(n, o[n / 8] + n % 8 * 8);
  } else {
#pragma unroll
    for (int owner = 0; owner < SPLITS; owner++) {
      const u32 received = shared + RECEIVED + place_of(share.split, owner) * PIECES_PER_BLOCK * PIECE_BYTES + thread * 16;
      const u32 there = in_block(received, owner), barrier = in_block(shared + PARTS_IN, owner);
#pragma unroll
      for (int at = 0; at < PIECES_PER_BLOCK && owner * PIECES_PER_BLOCK + at < PIECES; at++) {
        const int n = owner * PIECES_PER_BLOCK + at;
        const float* v = o[n / 8] + n % 8 * 8;
        const u32 x[4] = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
        if (owner == share.split) store_u32x4(own + at * PIECE_BYTES, x[0], x[1], x[2], x[3]);
        else send_far_u32x4(there + at * PIECE_BYTES, barrier, x[0], x[1], x[2], x[3]);
      }
    }
    barrier_wait_far(shared + PARTS_IN, 0);
    consumers_meet();
    float factors[SPLITS][2];
    u32 from[SPLITS];
#pragma unroll
    for (int n = 0; n < SPLITS; n++) {
      factors[n][0] = factor(n, 0), factors[n][1] = factor(n, 1);
      from[n] = n == share.split ? own
                                 : shared + RECEIVED + place_of(n, share.split) * PIECES_PER_BLOCK * PIECE_BYTES + thread * 16;
    }
#pragma unroll 2
    for (int at = 0; at < pieces; at++) {
      float total[8] = {};
#pragma unroll
      for (int n = 0; n < SPLITS; n++) {
        const uint4 part = load_u32x4(from[n] + at * PIECE_BYTES);
        const u32 pair[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (int z = 0; z < 4; z++) {
          total[2 * z] += low_bf16(pair[z]) * factors[n][z % 2];
          total[2 * z + 1] += high_bf16(pair[z]) * factors[n][z % 2];
        }
      }
      store(at, total);
    }
  }
  __syncwarp();
  // Whole lines: 32 bytes a piece of each of the warp's heads.
  const int column = half * 256 + share.split * PIECES_PER_BLOCK * 16;
  bf16* out = call.out + ((i64)share.query * call.heads + share.first_head + w * 16) * LATENT + column;
#pragma unroll
  for (int z = 0; z < PIECES_PER_BLOCK; z++) {
    const int at = z * WARP + lane, row = at / (2 * PIECES_PER_BLOCK), chunk = at % (2 * PIECES_PER_BLOCK);
    if (chunk < 2 * pieces && share.first_head + w * 16 + row < call.heads)
      *(uint4*)(out + row * LATENT + chunk * 8) = load_u32x4(finished + row * FINISHED_PITCH + chunk * 16);
  }
}
