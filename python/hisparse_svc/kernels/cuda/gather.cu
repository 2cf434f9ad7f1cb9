// Missing rows, host -> hot rows. A grid of few blocks walks the misses of all requests, request by request.
//
//   counts  [ 3 │ 0 │ 2 ]  ──►  first  [ 0 │ 3 │ 3 │ 5 ]        miss i belongs to the last request with first <= i
//
//   warp w of W takes misses w, w+W, w+2W, ...: what is in flight at one moment is one stretch of the list, so with
//   contiguous pages it is one stretch of host addresses, which is what address translation is fast at.
//
// Lanes look up 32 misses of their warp at once, and the next 32 while these are copied: the list entry before the first
// row, the page map half way. One row of a warp is in flight: more at once is slower over a large pool (placement.py).
#include "rows.cuh"

// first[i] = misses of requests before i, for 0 <= i <= batch; every thread gets the total.
__device__ __forceinline__ int prefix_counts(const int* counts, int batch, int* first) {
  __shared__ int warp_sums[WARP];
  int carried = 0;
  for (int start = 0; start < batch; start += THREADS) {
    const int i = start + threadIdx.x;
    const int own = i < batch ? min(max(__ldg(counts + i), 0), PICKS) : 0;
    const int upto = inclusive_sum(own);
    if (lane_id() == WARP - 1) warp_sums[warp_id()] = upto;
    __syncthreads();
    const int sums = lane_id() < THREADS / WARP ? warp_sums[lane_id()] : 0;
    const int earlier = __reduce_add_sync(ALL_LANES, lane_id() < warp_id() ? sums : 0);
    if (i < batch) first[i] = carried + earlier + upto - own;
    carried += __reduce_add_sync(ALL_LANES, sums);
    __syncthreads();
  }
  if (threadIdx.x == 0) first[batch] = carried;
  __syncthreads();
  return carried;
}

__device__ __forceinline__ int request_of(const int* first, int batch, int miss) {
  int low = 0, high = batch - 1;                             // the answer stays in low..high
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first[middle] <= miss) low = middle;
    else high = middle - 1;
  }
  return low;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gather(const u8* host, u8* hot, const int2* __restrict__ misses, const int* __restrict__ counts,
       const int* __restrict__ page_map, int batch, int host_pages, int hot_rows, i64 page_pitch, i64 row_pitch,
       i64 hot_layer_pitch) {
  __shared__ int first[MAX_BATCH + 1];
  const int total = prefix_counts(counts, batch, first);
  const int warps = gridDim.x * (THREADS / WARP), warp = blockIdx.x * (THREADS / WARP) + warp_id(), lane = lane_id();

  const auto listed = [&](int start) {                       // this lane's miss of 32; row -1 where there is none
    const int mine = start + lane * warps;
    if (mine >= total) return make_int2(0, -1);
    const int request = request_of(first, batch, mine);
    return __ldg(misses + (i64)request * PICKS + (mine - first[request]));
  };
  const auto host_offset_of = [&](int2 miss) {
    if ((u32)miss.y >= (u32)hot_rows || (u32)miss.x >= (u32)(MAP_PAGES * PAGE)) return (i64)-1;
    return host_row_offset(page_map, miss.y / PADDED, miss.x, host_pages, page_pitch, row_pitch);
  };
  int2 next = listed(warp);
  i64 next_from = host_offset_of(next);
  for (int start = warp; start < total; start += WARP * warps) {
    const i64 from = next_from, to = (u32)next.y < (u32)hot_rows ? (i64)next.y * HOT_PITCH : -1;
    next = listed(start + WARP * warps);
    for (int i = 0; i < WARP && start + i * warps < total; i++) {
      if (i == WARP / 2) next_from = host_offset_of(next);
      const i64 source = __shfl_sync(ALL_LANES, from, i), target = __shfl_sync(ALL_LANES, to, i);
      if (target < 0) continue;
#pragma unroll
      for (int block = 0; block < LOADS; block += IN_FLIGHT) {
        uint4 v[IN_FLIGHT];
#pragma unroll
        for (int l = 0; l < IN_FLIGHT; l++) {
          const int c = (block + l) * WARP + lane;
          v[l] = make_uint4(0, 0, 0, 0);                     // a token without a host page becomes zeros
          if (c < CHUNKS && source >= 0) v[l] = load_host(host + source + host_offset(c));
        }
#pragma unroll
        for (int l = 0; l < IN_FLIGHT; l++) {
          const int c = (block + l) * WARP + lane;
          if (c < CHUNKS) *(uint4*)(hot + target + hot_offset(c, hot_layer_pitch)) = v[l];
        }
      }
    }
  }
}
