// A resolved step's rows in two parts: those that were hot, and those that the gather is to bring.
//
//   rows  [ 7 │ 3 │ -1 │ 9 │ 4 ]  late: 3, 4        hits [ 7 │ 9 │ … ] 2       misses [ 3 │ 4 │ … ] 2     per query row
//
// Picks that are no row are in neither. Parts keep the order of warps, then of a thread's picks, then of lanes.
#pragma once
#include "common.cuh"

struct Parts {
  int *hit_rows, *hit_counts, *miss_rows, *miss_counts;      // [request][query row][TOP_K], and how many of them count
};

// By all threads of a request's block. Pick k of a thread is number place(k) of the request's, and bit k of `late` says
// whether its row is on its way. tally: 2 x 32 words.
template <int MINE, typename Place>
__device__ __forceinline__ void write_parts(const Parts& parts, u32* tally, const int (&row)[MINE], u32 late, Place place) {
  static_assert(TOP_K < 65536, "two counts in one register");
  const int warp = warp_id(), lane = lane_id();
  __syncthreads();
#pragma unroll 1
  for (int query_row = 0; query_row < QUERY_ROWS; query_row++) {
    const i64 part = (i64)blockIdx.x * QUERY_ROWS + query_row;
    u32 hit[MINE], miss[MINE], sums = 0;
#pragma unroll
    for (int k = 0; k < MINE; k++) {
      const bool wanted = (u32)(place(k) - query_row * TOP_K) < TOP_K && row[k] >= 0, is_late = late >> k & 1;
      hit[k] = __ballot_sync(ALL_LANES, wanted && !is_late), miss[k] = __ballot_sync(ALL_LANES, wanted && is_late);
      sums += __popc(hit[k]) | __popc(miss[k]) << 16;
    }
    u32* of_row = tally + query_row % 2 * WARP;
    if (lane == 0) of_row[warp] = sums;
    __syncthreads();
    const u32 of_warp = lane < THREADS / WARP ? of_row[lane] : 0, all = __reduce_add_sync(ALL_LANES, of_warp);
    const u32 before = __reduce_add_sync(ALL_LANES, lane < warp ? of_warp : 0);
    int* hits = parts.hit_rows + part * TOP_K + (before & 0xFFFF);
    int* misses = parts.miss_rows + part * TOP_K + (before >> 16);
#pragma unroll
    for (int k = 0; k < MINE; k++) {
      if (hit[k] >> lane & 1) hits[__popc(hit[k] & lanes_below())] = row[k];
      if (miss[k] >> lane & 1) misses[__popc(miss[k] & lanes_below())] = row[k];
      hits += __popc(hit[k]), misses += __popc(miss[k]);
    }
    if (threadIdx.x == 0) parts.hit_counts[part] = all & 0xFFFF, parts.miss_counts[part] = all >> 16;
  }
}

// The parts of a request that is none.
__device__ __forceinline__ void write_no_parts(const Parts& parts) {
  for (int row = threadIdx.x; row < QUERY_ROWS; row += THREADS)
    parts.hit_counts[blockIdx.x * QUERY_ROWS + row] = parts.miss_counts[blockIdx.x * QUERY_ROWS + row] = 0;
}
