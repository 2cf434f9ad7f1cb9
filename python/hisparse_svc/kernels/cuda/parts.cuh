// A resolved step's rows in two parts: those that were hot, and those that the gather is to bring; and what is to be copied,
// looked up here, where others are counted meanwhile, so that the gather starts with a row and not with a look-up.
//
//   rows  [ 7 │ 3 │ -1 │ 9 │ 4 ]  late: 3, 4        hits [ 7 │ 9 │ … ] 2       misses [ 3 │ 4 │ … ] 2     per query row
//
// Picks that are no row are in neither. Parts keep the order of warps, then of a thread's picks, then of lanes.
#pragma once
#include "common.cuh"

struct Parts {
  int *hit_rows, *hit_counts, *miss_rows, *miss_counts;      // [request][query row][TOP_K], and how many of them count
  const int* page_map;                                       // [seat][MAP_PAGES]
  uint2* copies;                                             // [request][PICKS]: host row and hot row of each miss listed
};
#define PARTS_PARAMETERS                                                                                               \
  int *hit_rows, int *hit_counts, int *miss_rows, int *miss_counts, const int *page_map, uint2 *copies
#define PARTS_GIVEN {hit_rows, hit_counts, miss_rows, miss_counts, page_map, copies}

// The host page of a token of a seat, as a number: what is none is larger than any.
__device__ __forceinline__ u32 page_of(const Parts& parts, int seat, u32 token) {
  return __ldg(parts.page_map + (i64)seat * MAP_PAGES + token / PAGE);
}
__device__ __forceinline__ uint2 copy_of(u32 page, u32 token, int hot_row) {
  constexpr u32 MOST_PAGES = 0xFFFFFFFFu / PAGE;
  return make_uint2(page < MOST_PAGES ? page * PAGE + token % PAGE : 0xFFFFFFFFu, hot_row);
}

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
