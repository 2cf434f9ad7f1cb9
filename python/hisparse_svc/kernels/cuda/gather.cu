// Missing rows, host -> hot rows, in the order of host addresses. Blocks work in clusters of PARTS.
//
//   counts [ 3 │ 0 │ 2 ]  ──►  first [ 0 │ 3 │ 3 │ 5 ]       miss i belongs to the last request with first <= i
//
//   each cluster takes an even share of the misses, request by request; in it:
//   1  each block looks its part of them up: host row, hot row               32 by 32 to the blocks in turn
//   2  a counting sort over the cluster puts them in order of their host pages, 32 by 32 to the blocks in turn again:
//        bins of each block       its misses of each of BINS even parts of the pool
//        block b, of bin range b  sums over the blocks  ──►  where each block's misses of each bin begin
//        every miss               into the list of the block that copies it
//   3  each warp copies the next row of its block's list, one at a time: more in flight is slower (placement.py)
//
// So all rows in flight at one moment, whoever's they are, lie in one stretch of host memory, which is what address
// translation is fast at: each part of a page table is fetched once, not once per request that has a row there.
// A list holds CAPACITY rows; more are done in rounds. Few are copied in the order they are listed in, and so are all
// where there are no clusters.
//
// BETWEEN resolve and attention, resolve has looked the rows up (parts.cuh). Few of few requests are then listed in one
// step: block b takes every PARTS-th of request r, from (b + r) % PARTS on so that all take equally many, and loads them
// before it knows how many there are.
#include "cluster.cuh"
#include "rows.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int MINE = 8;                                      // rows that one thread looks up in one round
constexpr int CAPACITY = MINE * THREADS;                     // rows of one block in one round
constexpr int RANGE = BINS / PARTS;                          // bins that one block sums
constexpr u32 NO_ROW = 0xFFFFFFFFu;

constexpr int IN_FLIGHT = LOADS < 6 ? LOADS : 6;             // loads of one lane before its first store

static_assert(BINS % PARTS == 0 && PARTS <= WARP, "even parts");

// Where a row comes from and goes to: page * PAGE + row of the page, and hot row.
struct Shared {
  uint2 list[CAPACITY];
  u32 bins[BINS];
  u32 range_totals[PARTS];
  u32 warp_sums[WARP];
  int first[MAX_BATCH + 1];
};

// Sum of `own` over the threads before this one, and over all earlier calls, which `carried` has.
__device__ __forceinline__ u32 sum_before(u32 own, u32* warp_sums, u32& carried) {
  const u32 upto = inclusive_sum(own);
  if (lane_id() == WARP - 1) warp_sums[warp_id()] = upto;
  __syncthreads();
  const u32 sums = lane_id() < WARPS ? warp_sums[lane_id()] : 0;
  const u32 before = carried + __reduce_add_sync(ALL_LANES, lane_id() < warp_id() ? sums : 0) + upto - own;
  carried += __reduce_add_sync(ALL_LANES, sums);
  __syncthreads();
  return before;
}

// Misses of a request. BETWEEN, they are written when this kernel already runs, so no __ldg.
__device__ __forceinline__ int count_of(const int* counts, int request) {
  return min(max(BETWEEN ? counts[request] : __ldg(counts + request), 0), PICKS);
}

// first[i] = misses of requests before i, for 0 <= i <= batch; every thread gets the total.
__device__ __forceinline__ int prefix_counts(const int* counts, int batch, Shared& sh) {
  u32 total = 0;
  for (int start = 0; start < batch; start += THREADS) {
    const int i = start + threadIdx.x;
    const u32 before = sum_before(i < batch ? count_of(counts, i) : 0, sh.warp_sums, total);
    if (i < batch) sh.first[i] = before;
  }
  if (threadIdx.x == 0) sh.first[batch] = total;
  __syncthreads();
  return total;
}

// Item i of a round is in slot slot_of(i) of block block_of(i).
__device__ __forceinline__ int slot_of(int i) { return i / (WARP * PARTS) * WARP + i % WARP; }
__device__ __forceinline__ int block_of(int i) { return i / WARP % PARTS; }
__device__ __forceinline__ int item_of(int slot, int part) { return (slot / WARP * PARTS + part) * WARP + slot % WARP; }
__device__ __forceinline__ int slots_of(int items, int part) {
  return items / (WARP * PARTS) * WARP + min(max(items % (WARP * PARTS) - part * WARP, 0), WARP);
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, 2)
gather(const u8* host, u8* hot, const int2* __restrict__ misses, const int* counts, const int* __restrict__ page_map,
       int batch, int host_pages, u32 bins_per_page, int hot_rows, i64 page_pitch, i64 row_pitch, i64 hot_layer_pitch,
       const uint2* copies) {
  __shared__ Shared sh;
  if constexpr (BETWEEN) {                                   // resolve and attention, each beside this kernel for a while
    wait_for_previous_kernel();
    next_kernel_may_start();
  }
  const int tid = threadIdx.x, lane = lane_id(), part = blockIdx.x % PARTS;

  const auto possible = [&](uint2 r) {                       // a copy that resolve listed, as far as it can be made
    return make_uint2(r.x / PAGE < (u32)host_pages ? r.x : NO_ROW, r.y < (u32)hot_rows ? r.y : NO_ROW);
  };
  // Loads `load` and on of a row; a token without a host page becomes zeros.
  const auto fetch = [&](uint4(&v)[IN_FLIGHT], uint2 which, int load) {
    const u8* from = host + which.x / PAGE * page_pitch + which.x % PAGE * row_pitch;
#pragma unroll
    for (int l = 0; l < IN_FLIGHT; l++) {
      const int c = (load + l) * WARP + lane;
      v[l] = make_uint4(0, 0, 0, 0);
      if (c < CHUNKS && which.x != NO_ROW) v[l] = load_host(from + host_offset(c));
    }
  };
  const auto put = [&](const uint4(&v)[IN_FLIGHT], uint2 which, int load) {
    u8* to = hot + (i64)which.y * HOT_PITCH;
#pragma unroll
    for (int l = 0; l < IN_FLIGHT; l++) {
      const int c = (load + l) * WARP + lane;
      if (c < CHUNKS && which.y != NO_ROW) *(uint4*)(to + hot_offset(c, hot_layer_pitch)) = v[l];
    }
  };
  const auto copy_list = [&](int slots) {
    for (int slot = warp_id(); slot < slots; slot += WARPS) {
      const uint2 which = sh.list[slot];
#pragma unroll
      for (int load = 0; load < LOADS; load += IN_FLIGHT) {
        uint4 v[IN_FLIGHT];
        fetch(v, which, load);
        put(v, which, load);
      }
    }
  };

  if (BETWEEN && batch <= WARP && gridDim.x == PARTS) {      // a request for each lane, and for each of 32 groups of threads
    const int request = tid / WARPS;
    const uint2* listed = copies + (i64)request * PICKS;
    int i = tid % WARPS * PARTS + (part + request) % PARTS;
    uint2 row = request < batch && i < PICKS ? listed[i] : make_uint2(NO_ROW, NO_ROW);    // maybe beyond the last one
    const int count = lane < batch ? count_of(counts, lane) : 0;
    if (__reduce_add_sync(ALL_LANES, count) < min(ORDER_FROM, CAPACITY)) {
      const int own = (count - (part + lane) % PARTS + PARTS - 1) / PARTS;
      const int upto = inclusive_sum(own), end = __shfl_sync(ALL_LANES, count, request);
      int slot = __shfl_sync(ALL_LANES, upto - own, request) + tid % WARPS;
      for (; i < end; i += WARPS * PARTS, slot += WARPS) {
        sh.list[slot] = possible(row);
        if (i + WARPS * PARTS < end) row = listed[i + WARPS * PARTS];
      }
      __syncthreads();
      copy_list(__shfl_sync(ALL_LANES, upto, WARP - 1));
      return;
    }
  }

  const i64 total = prefix_counts(counts, batch, sh), clusters = gridDim.x / PARTS, cluster = blockIdx.x / PARTS;
  const int first_item = (int)(total * cluster / clusters), end = (int)(total * (cluster + 1) / clusters);
  const int rounds = (end - first_item + CAPACITY * PARTS - 1) / (CAPACITY * PARTS);
  const int share = rounds ? (end - first_item + rounds - 1) / rounds : 0;
  int highest_step = 1;
  while (2 * highest_step < batch) highest_step *= 2;

  for (int begin = first_item; begin < end; begin += share) {
    const int items = min(share, end - begin), slots = slots_of(items, part);
    const bool ordered = ONE_BODY && total >= ORDER_FROM;
    if (ordered)
      for (int bin = tid; bin < BINS; bin += THREADS) sh.bins[bin] = 0;

    // 1: request, miss, host page of each; the steps of all run abreast, as each is a wait.
    int request[MINE] = {};
    for (int step = highest_step; step > 0; step /= 2)
#pragma unroll
      for (int k = 0; k < MINE; k++) {
        const int i = begin + item_of(k * THREADS + tid, part), other = request[k] + step;
        if (other < batch && sh.first[other] <= i) request[k] = other;
      }
    int2 miss[MINE];
    uint2 row[MINE];
#pragma unroll
    for (int k = 0; k < MINE; k++) {
      const int slot = k * THREADS + tid, i = begin + item_of(slot, part);
      const i64 at = (i64)request[k] * PICKS + (i - sh.first[request[k]]);
      if constexpr (BETWEEN) row[k] = slot < slots ? possible(copies[at]) : make_uint2(NO_ROW, NO_ROW);
      else miss[k] = slot < slots ? __ldg(misses + at) : make_int2(0, -1);
    }
#pragma unroll
    for (int k = 0; k < MINE && !BETWEEN; k++) {
      const u32 token = miss[k].x, to = miss[k].y;
      const bool known = to < (u32)hot_rows && token < (u32)(MAP_PAGES * PAGE);
      const u32 page = known ? __ldg(page_map + (i64)(to / PADDED) * MAP_PAGES + token / PAGE) : NO_ROW;
      row[k] = make_uint2(page < (u32)host_pages ? page * PAGE + token % PAGE : NO_ROW, to < (u32)hot_rows ? to : NO_ROW);
    }

    // 2: into the lists.
    if (ordered) {
      const auto bin_of = [&](uint2 r) { return min(__umulhi(r.x / PAGE, bins_per_page), (u32)BINS - 1); };
      u32 place[MINE];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < MINE; k++)
        place[k] = k * THREADS + tid < slots ? atomicAdd(&sh.bins[bin_of(row[k])], 1u) : 0;
      cluster_barrier();                                     // the blocks' bins are full
      u32 range_total = 0;
      for (int start = 0; start < RANGE; start += THREADS) {
        u32* mine = &sh.bins[part * RANGE + min(start + tid, RANGE - 1)];
        u32 of_block[PARTS], of_all = 0;
#pragma unroll
        for (int b = 0; b < PARTS; b++) {
          of_block[b] = start + tid < RANGE ? read_in_block(mine, b) : 0;
          of_all += of_block[b];
        }
        u32 before = sum_before(of_all, sh.warp_sums, range_total);
        if (start + tid < RANGE)
#pragma unroll
          for (int b = 0; b < PARTS; b++) {
            write_in_block(mine, b, before);
            before += of_block[b];
          }
      }
      if (tid < PARTS) write_in_block(&sh.range_totals[part], tid, range_total);
      cluster_barrier();                                     // bins say where each block's misses of a range begin
      const u32 own_range = lane < PARTS ? sh.range_totals[lane] : 0;
      const u32 earlier_ranges = inclusive_sum(own_range) - own_range;                  // lane r: before range r
#pragma unroll
      for (int k = 0; k < MINE; k++) {
        const u32 bin = bin_of(row[k]), i = __shfl_sync(ALL_LANES, earlier_ranges, bin / RANGE) + sh.bins[bin] + place[k];
        if (k * THREADS + tid < slots) write_in_block(&sh.list[slot_of(i)], block_of(i), row[k]);
      }
      cluster_barrier();                                     // the lists are whole
    } else {
#pragma unroll
      for (int k = 0; k < MINE; k++) sh.list[k * THREADS + tid] = row[k];
      __syncthreads();
    }

    // 3: copy.
    copy_list(slots);
    if (begin + share < end) {                             // nobody writes to a list that is still read
      if (ONE_BODY) cluster_barrier();
      else __syncthreads();
    }
  }
}
