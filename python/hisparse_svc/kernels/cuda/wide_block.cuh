// Blocks of 64 heads (decode_wide.cu): what lies where in shared memory, who meets whom, how rows and queries arrive.
#pragma once
#include "decode.cuh"
#include "wgmma.cuh"

constexpr int GROUP = 128;                                   // threads of a warpgroup
static_assert(TILE == 48, "three slices of 16 tokens: a product of values deep, a pass of the producers");
static_assert(!FP8 && HEADS == 64, "bf16 rows, one product high");
static_assert(THREADS == 4 * GROUP, "four warpgroups");

constexpr int BLOCK = TILE * 128;                            // 64 numbers of a tile
constexpr int QUERY_BLOCK = HEADS * 128;                     // and of all heads
constexpr int KEY_BLOCKS = KEY / 64, TILE_BYTES = KEY_BLOCKS * BLOCK;
constexpr int SHARED_BLOCKS = KEY_BLOCKS - HELD_BLOCKS;      // of queries, in shared memory; the last ones are held
constexpr int QUERY = 0;
constexpr int TILES = QUERY + SHARED_BLOCKS * QUERY_BLOCK;
constexpr int WEIGHTS = TILES + BUFFERS * TILE_BYTES;        // [head][token]
constexpr int MASKS = WEIGHTS + HEADS * TILE * 2;            // [buffer][token]: a byte, 0xFF where there is a row
constexpr int KEPT = MASKS + BUFFERS * TILE;                 // [head]: what older outputs are multiplied by
constexpr int FULL = KEPT + HEADS * 4;
constexpr int SLICES = TILE / 16;                            // of a tile: values leave one after another
constexpr int EMPTY = FULL + 8 * BUFFERS;                    // [buffer][slice]
constexpr int WEIGHTS_FULL = EMPTY + 8 * BUFFERS * SLICES, WEIGHTS_EMPTY = WEIGHTS_FULL + 8;
constexpr int VALUES_MAY = WEIGHTS_EMPTY + 8;                // multiply: the next scores' products are done
constexpr int SUMS_IN = VALUES_MAY + 8, PARTS_IN = SUMS_IN + 8;  // from other blocks
constexpr int SUMS = PARTS_IN + 8;                           // [block of the cluster][head]: top, sum
constexpr int END = SUMS + SPLITS * HEADS * 8;
static_assert(END <= SHARED_BYTES, "shared memory");

__device__ __forceinline__ void consumers_meet() { meet<1, 3 * GROUP>(); }
__device__ __forceinline__ void scorers_meet() { meet<2, GROUP>(); }
__device__ __forceinline__ void values_meet() { meet<3, 2 * GROUP>(); }
// The cluster's only barrier: in every block queries are no longer read. Nobody writes another block's memory before it.
// Under memcheck a warp that has arrived runs no further until all have; so there, and nowhere else, it arrives to wait.
#ifndef ARRIVES_TO_WAIT
#define ARRIVES_TO_WAIT 0
#endif
__device__ __forceinline__ void done_with_queries() {
  if constexpr (SPLITS > 1 && !ARRIVES_TO_WAIT) {
    __syncwarp();
    cluster_arrive_relaxed();
  }
}
__device__ __forceinline__ void all_done_with_queries() {
  if constexpr (SPLITS > 1) {
    __syncwarp();
    if (ARRIVES_TO_WAIT) cluster_arrive_relaxed();
    cluster_wait();
  }
}

// 16 bytes to shared memory, zeros if not `real`; of rows, the L2 may drop them first, so that it keeps queries and picks.
__device__ __forceinline__ void copy_piece(u32 to, const u8* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(real ? 16 : 0), "l"(EVICT_FIRST)
               : "memory");
}
__device__ __forceinline__ void copy_query_piece(u32 to, const bf16* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
// An arrival once this thread's copies have landed.
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Eight threads copy 128 consecutive bytes of a row; a thread has a row of each slice.
constexpr int ROWS = SLICES;
__device__ __forceinline__ int row_of(int thread, int r) { return thread / 8 + r * (GROUP / 8); }
__device__ __forceinline__ void produce(const Call& call, const Share& share, u32 shared, int (&ahead)[ROWS], int thread) {
  const int piece = thread % 8, swizzled = (piece ^ (thread / 8 % 8)) << 4;
  int buffer = 0, parity = 1;
#pragma unroll 1
  for (int tile = 0; tile < share.last; tile++) {
    int current[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      current[r] = ahead[r];
      ahead[r] = pick_at<TILE>(call, share, tile + 1, row_of(thread, r));
    }
    wait_if_late(share, tile);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      barrier_wait(shared + EMPTY + 8 * (buffer * SLICES + r), parity);
      const bool real = is_row(call, current[r]);
      const u8* from = call.rows + (real ? current[r] * call.row_pitch : 0) + piece * 16;
      const u32 to = shared + TILES + buffer * TILE_BYTES + row_of(thread, r) * 128 + swizzled;
#pragma unroll
      for (int block = 0; block < KEY_BLOCKS; block++) copy_piece(to + block * BLOCK, from + block * 128, real);
      const u32 rows = __ballot_sync(ALL_LANES, real);       // eight threads a row: a byte
      if (thread % WARP == 0) store_u32(shared + MASKS + buffer * TILE + row_of(thread, r), rows);
    }
    arrive_when_copied(shared + FULL + 8 * buffer);
    __syncwarp();
    if (thread % WARP == 0) barrier_arrive(shared + FULL + 8 * buffer);
    if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
  }
  wait_if_late(share, share.last);
}

// By the warpgroups of values: the blocks that lie in shared memory.
__device__ __forceinline__ void load_query(const Call& call, const Share& share, u32 shared, int thread) {
  const int piece = thread % 8;
#pragma unroll
  for (int l = 0; l < SHARED_BLOCKS * 2; l++) {
    const int block = l / 2, head = l % 2 * 32 + thread / 8;
    const bool real = share.first_head + head < call.heads;
    const bf16* from = call.q + ((i64)share.query * call.heads + (real ? share.first_head + head : 0)) * KEY;
    copy_query_piece(shared + QUERY + block * QUERY_BLOCK + head * 128 + ((piece ^ head % 8) << 4),
                     from + block * 64 + piece * 8, real);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  async_follows_stores();
}
// And those that the first warpgroup holds: A operands of 16 numbers each.
typedef u32 Held[HELD_BLOCKS * 4][4];
__device__ __forceinline__ void hold_query(Held& held, const Call& call, const Share& share, int w, int lane) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int head = share.first_head + w * 16 + lane / 4 + r * 8;
    const bool real = head < call.heads;
    const bf16* row = call.q + ((i64)share.query * call.heads + (real ? head : 0)) * KEY;
    const u32* from = (const u32*)row + SHARED_BLOCKS * 32 + lane % 4;
#pragma unroll
    for (int k = 0; k < HELD_BLOCKS * 4; k++)
#pragma unroll
      for (int z = 0; z < 2; z++) held[k][2 * z + r] = from[k * 8 + z * 4];
    if (!real) {
#pragma unroll
      for (int k = 0; k < HELD_BLOCKS * 4; k++) held[k][r] = held[k][2 + r] = 0;
    }
  }
}
