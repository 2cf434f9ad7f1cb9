// A resolved step's rows, parted into those that were hot and those on their way. One block per query row.
//
//   misses of the request ──► bitmap over the rows of its seat, in shared memory
//   row of pick j: bit not set ──► hits, bit set ──► misses;  both in the order of the picks, their counts beside
#include "common.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int MINE = (TOP_K + THREADS - 1) / THREADS;        // picks of one thread
constexpr int BIT_WORDS = (PADDED + WARP - 1) / WARP;
static_assert(WARPS == WARP && TOP_K < 65536, "a lane a warp, and two counts in one register");

extern "C" __global__ void __launch_bounds__(THREADS)
    split_picks(const int* rows, const int2* misses, const int* counts, int* hit_rows, int* hit_counts, int* miss_rows,
                int* miss_counts) {
  __shared__ u32 missing[BIT_WORDS], tally[WARPS];
  const int request = blockIdx.x / QUERY_ROWS;
  const i64 out = (i64)blockIdx.x * TOP_K;
  const int first = warp_id() * WARP * MINE + lane_id();     // pick k of this thread is first + 32 k
  int row[MINE];
#pragma unroll
  for (int k = 0; k < MINE; ++k) row[k] = first + WARP * k < TOP_K ? __ldg(rows + out + first + WARP * k) : -1;
  // The first miss of this thread is loaded beside the count that says whether it is one.
  const i64 listed = (i64)request * PICKS;
  const int prefetched = threadIdx.x < PICKS ? __ldg(&misses[listed + threadIdx.x].y) : 0;
  const int count = min(max(__ldg(counts + request), 0), PICKS);
  for (int word = threadIdx.x; word < BIT_WORDS; word += THREADS) missing[word] = 0;
  __syncthreads();
  for (int at = threadIdx.x; at < count; at += THREADS) {
    const u32 place = (u32)(at < THREADS ? prefetched : __ldg(&misses[listed + at].y)) % PADDED;
    atomicOr(&missing[place / WARP], 1u << place % WARP);
  }
  __syncthreads();
  u32 hit[MINE], miss[MINE], sums = 0;
#pragma unroll
  for (int k = 0; k < MINE; ++k) {
    const u32 place = (u32)row[k] % PADDED;
    const bool on_its_way = row[k] >= 0 && missing[place / WARP] >> place % WARP & 1;
    hit[k] = __ballot_sync(ALL_LANES, row[k] >= 0 && !on_its_way), miss[k] = __ballot_sync(ALL_LANES, on_its_way);
    sums += __popc(hit[k]) | __popc(miss[k]) << 16;
  }
  if (lane_id() == 0) tally[warp_id()] = sums;
  __syncthreads();
  const u32 of_warp = tally[lane_id()], through = inclusive_sum(of_warp);
  const u32 before = __shfl_sync(ALL_LANES, through - of_warp, warp_id());
  int hits = before & 0xFFFF, misses_before = before >> 16;
#pragma unroll
  for (int k = 0; k < MINE; ++k) {
    if (hit[k] >> lane_id() & 1) hit_rows[out + hits + __popc(hit[k] & lanes_below())] = row[k];
    if (miss[k] >> lane_id() & 1) miss_rows[out + misses_before + __popc(miss[k] & lanes_below())] = row[k];
    hits += __popc(hit[k]), misses_before += __popc(miss[k]);
  }
  if (threadIdx.x == THREADS - 1) hit_counts[blockIdx.x] = hits, miss_counts[blockIdx.x] = misses_before;
}
