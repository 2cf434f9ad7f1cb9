// Finding the cut of a query row exactly, whatever the scores are: histograms, round by round, over BLOCKS blocks.
//
//   bounds     cut the tokens into at least TOP_K sets: the smallest of their maxima is at or below the cut
//   histogram  of the keys between bound and maximum, linear in the key; the bin of the cut is the next range; again
//              until few keys are left in it (one round as a rule, three at most)
//   the cut    the key that is left with need - 1 larger ones
//   output     a scan over the picked, in order of the tokens
//
// Keys are unsigned and order as the scores do; 0 is no score. Blocks of a cluster exchange bounds, histograms, keys and
// counts through each other's shared memory.
#pragma once
#include "hopper.cuh"

constexpr int QUADS = 8, VALUES = 4 * QUADS;                 // scores of one thread
constexpr int CHUNK = THREADS * VALUES;                      // scores of one block at a time
constexpr int WARPS = THREADS / WARP;
constexpr int BIN_BITS = 11, BINS = 1 << BIN_BITS;
constexpr int MOST = 6 * THREADS;                            // candidates of a query row, see index_top_k.cu
constexpr int FEW = 256;                                     // keys that are ranked one against all
constexpr int SETS = CLUSTER * THREADS;
constexpr int SET_PARTS = SETS >= TOP_K ? 1 : (TOP_K + SETS - 1) / SETS;                   // sets of one thread
constexpr bool BOUNDED = SET_PARTS <= 2;
constexpr int SET_LANES = SETS >= 8 * TOP_K ? 8 : SETS >= 4 * TOP_K ? 4 : SETS >= 2 * TOP_K ? 2 : 1;
static_assert(BINS == 2 * THREADS && WARPS == WARP, "a thread owns two bins, a lane a warp");

struct Bounds {
  u32 bound, top, count, unused;
};
struct Shared {
  u32 bins[2][BINS];                                         // two, so that peers may still read the last round's
  Bounds bounds[CLUSTER];
  u32 own_few[FEW], few[FEW];                                // keys left in this block, and in the cluster
  uint2 counts[CLUSTER];                                     // picked for sure, equal to the cut
  u32 own_few_count, few_count;
  u32 cut_bin, cut_before, cut_inside;
  u32 ranked_key, ranked_above, ranked_equal;
  Bounds warps[WARPS];
  uint2 warp_counts[WARPS];
  u32 places[2][QUADS * WARPS];                              // of the picked and of the equal ones: by quad, then warp
  int candidates[MOST], candidate_count;                     // tokens of this block that may be picked
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the host counts the same bytes");
template <int BLOCKS>
__device__ __forceinline__ void meet_blocks() {
  if (BLOCKS == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}

#define NONE __int_as_float(0xFF800000)                       // -inf

// Orders as the score does; +0 and -0 are one; NaN and -inf are 0, which is no score.
__device__ __forceinline__ u32 key_of(float score) {
  constexpr u32 LOWEST = 0x007FFFFFu;                        // of -inf, before it is taken off
  const int bits = __float_as_int(fmaxf(score, NONE) + 0.f);
  return ((u32)bits ^ ((u32)(bits >> 31) | 0x80000000u)) - LOWEST;
}

__device__ __forceinline__ float score_of(u32 key) {
  const u32 ordered = key + 0x007FFFFFu;
  return __uint_as_float(ordered >> 31 ? ordered ^ 0x80000000u : ~ordered);
}

struct Part {
  const float* scores;                                       // of the query row
  int begin, end, chunks;                                    // tokens of this block
};

__device__ __forceinline__ int first_of_quad(const Part& part, int chunk, int quad) {
  return part.begin + chunk * CHUNK + quad * 4 * THREADS + threadIdx.x * 4;
}
__device__ __forceinline__ void load_scores(float4 (&v)[QUADS], const Part& part, int chunk) {
#pragma unroll
  for (int quad = 0; quad < QUADS; ++quad) {
    const int at = first_of_quad(part, chunk, quad);
    v[quad] = make_float4(NONE, NONE, NONE, NONE);
    if (at < part.end) v[quad] = __ldcg((const float4*)(part.scores + at));        // rows are padded to whole quads
  }
  if (part.end - part.begin < (chunk + 1) * CHUNK) {         // the last quad may be cut
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
      const int left = part.end - first_of_quad(part, chunk, quad);
      if (left < 2) v[quad].y = NONE;
      if (left < 3) v[quad].z = NONE;
      if (left < 4) v[quad].w = NONE;
    }
  }
}
__device__ __forceinline__ void load_chunk(u32 (&key)[VALUES], const Part& part, int chunk) {
  float4 v[QUADS];
  load_scores(v, part, chunk);
#pragma unroll
  for (int quad = 0; quad < QUADS; ++quad) {
    key[4 * quad] = key_of(v[quad].x), key[4 * quad + 1] = key_of(v[quad].y);
    key[4 * quad + 2] = key_of(v[quad].z), key[4 * quad + 3] = key_of(v[quad].w);
  }
}
// Runs `body` over the keys of this block; where they are one chunk, they stay in registers.
template <typename Body>
__device__ __forceinline__ void each_chunk(u32 (&key)[VALUES], const Part& part, Body body) {
  for (int chunk = 0; chunk < part.chunks; ++chunk) {
    if (part.chunks > 1) load_chunk(key, part, chunk);
    body(chunk);
  }
}

// All keys of a thread, one after the other.
struct PartKeys {
  u32 (&key)[VALUES];
  const Part& part;
  template <typename Body>
  __device__ __forceinline__ void each(Body body) {
    each_chunk(key, part, [&](int) {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) body(key[i]);
    });
  }
};

// Smallest maximum of the sets, largest key, number of keys: over the cluster.
__device__ __forceinline__ Bounds find_bounds(u32 (&key)[VALUES], const Part& part, Shared& shared, int rank) {
  u32 top[2] = {0, 0}, count = 0;
  each_chunk(key, part, [&](int) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      top[i % SET_PARTS % 2] = max(top[i % SET_PARTS % 2], key[i]);
      count += key[i] != 0;
    }
  });
#pragma unroll
  for (int distance = 1; distance < SET_LANES; distance *= 2) top[0] = max(top[0], __shfl_xor_sync(ALL_LANES, top[0], distance));
  Bounds mine;
  mine.bound = __reduce_min_sync(ALL_LANES, SET_PARTS == 2 ? min(top[0], top[1]) : top[0]);
  mine.top = __reduce_max_sync(ALL_LANES, max(top[0], top[1]));
  mine.count = __reduce_add_sync(ALL_LANES, count);
  if (lane_id() == 0) shared.warps[warp_id()] = mine;
  __syncthreads();
  if (warp_id() == 0) {
    mine = shared.warps[lane_id()];
    mine.bound = __reduce_min_sync(ALL_LANES, mine.bound);
    mine.top = __reduce_max_sync(ALL_LANES, mine.top);
    mine.count = __reduce_add_sync(ALL_LANES, mine.count);
    if (lane_id() < CLUSTER) {
      const u32 there = in_block(shared_address(&shared.bounds[rank]), lane_id());
      store_far_u32(there, mine.bound);
      store_far_u32(there + 4, mine.top);
      store_far_u32(there + 8, mine.count);
    }
  }
  meet_blocks<CLUSTER>();
  Bounds all = shared.bounds[0];
#pragma unroll
  for (int other = 1; other < CLUSTER; ++other) {
    all.bound = min(all.bound, shared.bounds[other].bound);
    all.top = max(all.top, shared.bounds[other].top);
    all.count += shared.bounds[other].count;
  }
  if (!BOUNDED) all.bound = 0;
  return all;
}

// Where the cut lies: keys above `key` are picked, and the first `equal` of those that are `key`.
struct Cut {
  u32 key, equal;
};

// The bin in which the `need`-th largest lies, over the cluster: its number, keys in bins above it, and in it.
template <int BLOCKS>
__device__ __forceinline__ bool find_bin(Shared& shared, int round, u32 need) {
  const u32 at = shared_address(&shared.bins[round % 2][BINS - 2 - 2 * threadIdx.x]);      // the highest bins come first
  u32 low = 0, high = 0;
#pragma unroll
  for (int other = 0; other < BLOCKS; ++other) {
    const uint2 pair = load_far_u32x2(in_block(at, other));
    low += pair.x, high += pair.y;
  }
  const u32 inside_warp = inclusive_sum(low + high);
  if (lane_id() == WARP - 1) shared.warp_counts[warp_id()].x = inside_warp;
  __syncthreads();
  const u32 of_warp = shared.warp_counts[lane_id()].x, sums = inclusive_sum(of_warp);
  const u32 before = __shfl_sync(ALL_LANES, sums - of_warp, warp_id()) + inside_warp - low - high;
  const u32 all = __shfl_sync(ALL_LANES, sums, WARP - 1);
  if (before < need && need <= before + low + high) {
    const bool in_high = need <= before + high;
    shared.cut_bin = BINS - 2 - 2 * threadIdx.x + in_high;
    shared.cut_before = in_high ? before : before + high;
    shared.cut_inside = in_high ? high : low;
  }
  __syncthreads();
  return need <= all;
}

// The cut of the keys of BLOCKS blocks: it is in (below, top], or `below` itself. Where BLOCKS is 1, this is block 0.
template <int BLOCKS, typename Keys>
__device__ __forceinline__ Cut find_cut(Keys keys, Shared& shared, u32 below, u32 top) {
  u32 need = TOP_K;
  for (int round = 0;; ++round) {
    u32* bins = shared.bins[round % 2];
    bins[2 * threadIdx.x] = bins[2 * threadIdx.x + 1] = 0;
    if (threadIdx.x < FEW) shared.own_few[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.own_few_count = shared.few_count = 0;
    __syncthreads();
    const u32 first = below + 1, width = top - below;        // keys of the range
    const int shift = width > BINS ? WARP - BIN_BITS - __clz(width - 1) : 0;
    keys.each([&](u32 key) {
      if (key - first < width) atomicAdd(&bins[(key - first) >> shift], 1u);
    });
    meet_blocks<BLOCKS>();
    if (!find_bin<BLOCKS>(shared, round, need)) {
      // Only in the first round: fewer are above the bound than are wanted, so the bound is the cut.
      u32 above = 0;
#pragma unroll
      for (int warp = 0; warp < WARPS; ++warp) above += shared.warp_counts[warp].x;
      return Cut{below, need - above};
    }
    const u32 inside = shared.cut_inside;
    need -= shared.cut_before;
    below += shared.cut_bin << shift;
    top = min(top, below + (1u << shift));
    if (inside == need) return Cut{below, 0};
    if (shift == 0) return Cut{top, need};                   // all of them are equal
    if (inside <= FEW) break;
  }
  // Few are left: every block gets all of them and ranks them.
  keys.each([&](u32 key) {
    if (key - (below + 1) < top - below) shared.own_few[atomicAdd(&shared.own_few_count, 1u)] = key;
  });
  meet_blocks<BLOCKS>();
  if (threadIdx.x < FEW) {
#pragma unroll
    for (int other = 0; other < BLOCKS; ++other) {
      const u32 theirs = load_far_u32(in_block(shared_address(&shared.own_few[threadIdx.x]), other));
      if (theirs) shared.few[atomicAdd(&shared.few_count, 1u)] = theirs;
    }
  }
  __syncthreads();
  const u32 inside = shared.cut_inside;
  if (threadIdx.x < inside) {
    const u32 mine = shared.few[threadIdx.x];
    u32 above = 0, equal = 0;
    for (u32 other = 0; other < inside; ++other) above += shared.few[other] > mine, equal += shared.few[other] == mine;
    if (above < need && need <= above + equal) shared.ranked_key = mine, shared.ranked_above = above, shared.ranked_equal = equal;
  }
  __syncthreads();
  const u32 wanted = need - shared.ranked_above;
  // Where all of the equal ones are wanted, they are above a cut that is lower by one.
  return wanted == shared.ranked_equal ? Cut{shared.ranked_key - 1, 0} : Cut{shared.ranked_key, wanted};
}

// Bit i: key i is above the cut, or equals it.
__device__ __forceinline__ uint2 masks_of(const u32 (&key)[VALUES], Cut cut) {
  uint2 masks = make_uint2(0, 0);
#pragma unroll
  for (int i = 0; i < VALUES; ++i) masks.x |= (u32)(key[i] > cut.key) << i;
  if (cut.equal) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) masks.y |= (u32)(key[i] == cut.key) << i;
  }
  return masks;
}

// For each quad, how many marked ones lower lanes have in it; fills the places of the quads and warps in token order and
// returns how many the block has.
struct Lower {
  u32 bytes[QUADS / 4];
};
__device__ __forceinline__ Lower scan_marked(u32 mask, u32* places) {
  Lower lower;
#pragma unroll
  for (int half = 0; half < QUADS / 4; ++half) {
    const u32 nibbles = mask >> (16 * half) & 0xFFFF;
    u32 bytes = 0;
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) bytes |= (u32)__popc(nibbles >> (4 * quad) & 15) << (8 * quad);
    const u32 sums = inclusive_sum(bytes);                   // at most 128 in a byte
    lower.bytes[half] = sums - bytes;
    if (lane_id() == WARP - 1)
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) places[(4 * half + quad) * WARPS + warp_id()] = sums >> (8 * quad) & 255;
  }
  return lower;
}
// Turns counts into places, by one warp.
__device__ __forceinline__ u32 sum_places(u32* places) {
  u32 sum = 0, mine[QUADS];
#pragma unroll
  for (int i = 0; i < QUADS; ++i) mine[i] = places[lane_id() * QUADS + i], sum += mine[i];
  const u32 through = inclusive_sum(sum);
  u32 before = through - sum;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) places[lane_id() * QUADS + i] = before, before += mine[i];
  return __shfl_sync(ALL_LANES, through, WARP - 1);
}
__device__ __forceinline__ u32 place_of(u32 mask, const Lower& lower, const u32* places, int bit) {
  const int quad = bit / 4;
  const u32 bytes = quad < 4 ? lower.bytes[0] : lower.bytes[1];              // no array by a variable: it would leave registers
  return places[quad * WARPS + warp_id()] + (bytes >> (8 * (quad % 4)) & 255) +
         __popc(mask >> (4 * quad) & ((1 << bit % 4) - 1));
}

__device__ __forceinline__ void write_picks(u32 (&key)[VALUES], const Part& part, Shared& shared, int rank, Cut cut, int* picks) {
  // How many the blocks before this one pick.
  uint2 mine = make_uint2(0, 0), masks;
  each_chunk(key, part, [&](int) {
    masks = masks_of(key, cut);
    mine.x += __popc(masks.x), mine.y += __popc(masks.y);
  });
  mine.x = __reduce_add_sync(ALL_LANES, mine.x), mine.y = __reduce_add_sync(ALL_LANES, mine.y);
  __syncthreads();                                           // the last reader of warp_counts is done
  if (lane_id() == 0) shared.warp_counts[warp_id()] = mine;
  __syncthreads();
  if (warp_id() == 0) {
    mine = shared.warp_counts[lane_id()];
    mine.x = __reduce_add_sync(ALL_LANES, mine.x), mine.y = __reduce_add_sync(ALL_LANES, mine.y);
    if (lane_id() < CLUSTER) {
      const u32 there = in_block(shared_address(&shared.counts[rank]), lane_id());
      store_far_u32(there, mine.x);
      store_far_u32(there + 4, mine.y);
    }
  }
  meet_blocks<CLUSTER>();
  u32 sure = 0, equal = 0, all_sure = 0, all_equal = 0;
#pragma unroll
  for (int other = 0; other < CLUSTER; ++other) {
    const uint2 theirs = shared.counts[other];
    if (other < rank) sure += theirs.x, equal += theirs.y;
    all_sure += theirs.x, all_equal += theirs.y;
  }
  sure += min(equal, cut.equal);                             // equal ones that earlier blocks took stand before these
  each_chunk(key, part, [&](int chunk) {
    if (part.chunks > 1) masks = masks_of(key, cut);
    if (cut.equal) {                                         // of the equal ones, those that are among the first
      const Lower lower = scan_marked(masks.y, shared.places[1]);
      __syncthreads();
      if (warp_id() == 0) {
        const u32 here = sum_places(shared.places[1]);
        if (lane_id() == 0) shared.warp_counts[0].y = here;
      }
      __syncthreads();
      for (u32 rest = masks.y; rest; rest &= rest - 1) {
        const int bit = __ffs(rest) - 1;
        if (equal + place_of(masks.y, lower, shared.places[1], bit) < cut.equal) masks.x |= 1u << bit;
      }
      equal += shared.warp_counts[0].y;
    }
    const Lower lower = scan_marked(masks.x, shared.places[0]);
    __syncthreads();
    if (warp_id() == 0) {
      const u32 here = sum_places(shared.places[0]);
      if (lane_id() == 0) shared.warp_counts[0].x = here;
    }
    __syncthreads();
    for (u32 rest = masks.x; rest; rest &= rest - 1) {
      const int bit = __ffs(rest) - 1;
      const u32 at = sure + place_of(masks.x, lower, shared.places[0], bit);
      picks[at] = first_of_quad(part, chunk, bit / 4) + bit % 4;
    }
    sure += shared.warp_counts[0].x;
    if (part.chunks > 1) __syncthreads();
  });
  for (int at = all_sure + min(all_equal, cut.equal) + rank * THREADS + threadIdx.x; at < TOP_K; at += CLUSTER * THREADS)
    picks[at] = -1;
}

// Picks of a query row by all blocks of the cluster; every block has its part.
__device__ __forceinline__ void pick_by_rounds(const Part& part, Shared& shared, int rank, int* picks) {
  u32 key[VALUES];
  if (part.chunks == 1) load_chunk(key, part, 0);
  const Bounds bounds = find_bounds(key, part, shared, rank);
  const bool all = bounds.count <= TOP_K;
  const Cut cut = all ? Cut{0, 0} : find_cut<CLUSTER>(PartKeys{key, part}, shared, bounds.bound, bounds.top);
  write_picks(key, part, shared, rank, cut, picks);
}
