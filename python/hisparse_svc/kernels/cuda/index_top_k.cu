// The top_k tokens of each query row by (score, then lower token), ascending by token. Exact, and the same every time.
//
//   a cluster of CLUSTER blocks a query row, each with a consecutive part of its tokens
//   1  a guess      what of a sample over the whole row lies well below the cut; every block guesses the same
//   2  candidates   tokens whose scores are above the guess, in order: half as many again as are wanted, as a rule
//   3  block 0      takes the candidates of all blocks, finds the exact cut among them, and writes what is above
//
// Scores are read once, and what comes after has one in twenty of them to look at. Where the guess gives too few or too
// many candidates (plateaus, scores in steps), the blocks find the cut of all keys together: top_k_rounds.cuh.
#include "top_k_rounds.cuh"

constexpr int CANDIDATES = MOST / THREADS;                   // of one thread of block 0
constexpr bool GUESSES = 2 * TOP_K <= MOST;
constexpr int SAMPLE_QUADS = 4;                              // at most, of one thread
constexpr float AIMED = 1.35f * TOP_K;                       // candidates to aim at, at least
static_assert(CANDIDATES <= QUADS, "places hold a count for each warp and candidate");

// The larger lanes come first.
__device__ __forceinline__ float sort_lanes(float v) {
#pragma unroll
  for (int run = 2; run <= WARP; run *= 2) {
#pragma unroll
    for (int distance = run / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(ALL_LANES, v, distance);
      const bool first = (lane_id() & distance) == 0, descending = (lane_id() & run) == 0;
      v = first == descending ? fmaxf(v, other) : fminf(v, other);
    }
  }
  return v;
}

// A score that about AIMED tokens are above. Each warp takes the r-th largest of its lanes' maxima over the sample, and the
// block the mean of those: a share f of the scores is above it if 1 - (1 - f)^(sample of a lane) is r / 33.
__device__ __forceinline__ float guess(const float* scores, int visible, Shared& shared) {
  const int quads = visible <= 65536 ? 1 : visible <= 262144 ? 2 : SAMPLE_QUADS;
  float mine = NONE;
#pragma unroll
  for (int i = 0; i < SAMPLE_QUADS; ++i) {
    if (i >= quads) break;
    // The lanes of a warp are spread over the whole row.
    const i64 place = (i64)((i * WARP + lane_id()) * WARPS + warp_id()) * (visible / 4) / (quads * THREADS);
    const float4 v = __ldcg((const float4*)scores + place);
    mine = fmaxf(fmaxf(mine, fmaxf(v.x, v.y)), fmaxf(v.z, v.w));
  }
  const float sorted = sort_lanes(mine);
  const float share = fminf(AIMED / visible, 0.999f);
  const float above = 1.f - exp2f(4 * quads * log2f(1.f - share));
  const int rank = min(max((int)ceilf((WARP + 1) * above), 1), WARP);
  const u32 key = key_of(__shfl_sync(ALL_LANES, sorted, rank - 1));
  if (lane_id() == 0) shared.warp_counts[warp_id()].x = key / WARPS;
  __syncthreads();
  const u32 mean = __reduce_add_sync(ALL_LANES, shared.warp_counts[lane_id()].x);
  return score_of(mean);
}

// Tokens of this block whose scores are above the guess, in order; returns how many there are, even if not all fit.
__device__ __forceinline__ u32 gather_candidates(const Part& part, float least, Shared& shared) {
  u32 count = 0;
  for (int chunk = 0; chunk < part.chunks; ++chunk) {
    float4 v[QUADS];
    load_scores(v, part, chunk);
    u32 mask = 0;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad)
      mask |= ((u32)(v[quad].x > least) | (u32)(v[quad].y > least) << 1 | (u32)(v[quad].z > least) << 2 |
               (u32)(v[quad].w > least) << 3) << (4 * quad);
    const Lower lower = scan_marked(mask, shared.places[0]);
    __syncthreads();
    if (warp_id() == 0) {
      const u32 here = sum_places(shared.places[0]);
      if (lane_id() == 0) shared.warp_counts[0].y = here;
    }
    __syncthreads();
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const int bit = __ffs(rest) - 1;
      const u32 at = count + place_of(mask, lower, shared.places[0], bit);
      if (at < MOST) shared.candidates[at] = first_of_quad(part, chunk, bit / 4) + bit % 4;
    }
    count += shared.warp_counts[0].y;
    if (part.chunks > 1) __syncthreads();
  }
  return count;
}

struct CandidateKeys {
  const u32 (&key)[CANDIDATES];
  template <typename Body>
  __device__ __forceinline__ void each(Body body) {
#pragma unroll
    for (int i = 0; i < CANDIDATES; ++i) body(key[i]);
  }
};

// For marked candidates, how many stand before them; candidate i of a thread is i x THREADS behind the first.
__device__ __forceinline__ u32 place_marked(u32 (&place)[CANDIDATES], u32 marked, u32* places, u32& total) {
#pragma unroll
  for (int i = 0; i < CANDIDATES; ++i) {
    const u32 lanes = __ballot_sync(ALL_LANES, marked >> i & 1);
    place[i] = __popc(lanes & lanes_below());
    if (lane_id() == 0) places[i * WARPS + warp_id()] = __popc(lanes);
  }
  __syncthreads();
  if (warp_id() == 0) {
    u32 sum = 0, mine[CANDIDATES];
#pragma unroll
    for (int i = 0; i < CANDIDATES; ++i) mine[i] = places[lane_id() * CANDIDATES + i], sum += mine[i];
    u32 before = inclusive_sum(sum);
    if (lane_id() == WARP - 1) total = before;
    before -= sum;
#pragma unroll
    for (int i = 0; i < CANDIDATES; ++i) places[lane_id() * CANDIDATES + i] = before, before += mine[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < CANDIDATES; ++i) place[i] += places[i * WARPS + warp_id()];
  return total;
}

// Block 0: the picks among all candidates, of which `begin[r]` stand before those of block r.
__device__ __forceinline__ void pick_candidates(const float* scores, const u32 (&begin)[CLUSTER + 1], Shared& shared,
                                                int* picks) {
  const u32 total = begin[CLUSTER];
  int token[CANDIDATES];
  u32 key[CANDIDATES], top = 0;
#pragma unroll
  for (int i = 0; i < CANDIDATES; ++i) {
    const u32 at = i * THREADS + threadIdx.x;
    token[i] = -1;
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block)
      if (begin[block] <= at && at < begin[block + 1])
        token[i] = (int)load_far_u32(in_block(shared_address(&shared.candidates[at - begin[block]]), block));
  }
#pragma unroll
  for (int i = 0; i < CANDIDATES; ++i) {
    key[i] = token[i] >= 0 ? key_of(__ldcg(scores + token[i])) : 0;
    top = max(top, key[i]);
  }
  if (CLUSTER > 1) cluster_arrive();                         // the other blocks may leave
  Cut cut{0, 0};
  if (total > TOP_K) {
    u32 low = 0xFFFFFFFFu;
#pragma unroll
    for (int i = 0; i < CANDIDATES; ++i) low = key[i] ? min(low, key[i]) : low;
    top = __reduce_max_sync(ALL_LANES, top), low = __reduce_min_sync(ALL_LANES, low);
    __syncthreads();
    if (lane_id() == 0) shared.warp_counts[warp_id()] = make_uint2(top, low);
    __syncthreads();
    const uint2 both = shared.warp_counts[lane_id()];
    top = __reduce_max_sync(ALL_LANES, both.x), low = __reduce_min_sync(ALL_LANES, both.y);
    cut = find_cut<1>(CandidateKeys{key}, shared, low - 1, top);
  }
  u32 marked = 0, place[CANDIDATES], count = 0;
#pragma unroll
  for (int i = 0; i < CANDIDATES; ++i) marked |= (u32)(key[i] > cut.key) << i;
  if (cut.equal) {
    u32 equal = 0;
#pragma unroll
    for (int i = 0; i < CANDIDATES; ++i) equal |= (u32)(key[i] == cut.key) << i;
    place_marked(place, equal, shared.places[1], shared.cut_before);
#pragma unroll
    for (int i = 0; i < CANDIDATES; ++i) marked |= (u32)(equal >> i & 1 && place[i] < cut.equal) << i;
  }
  count = place_marked(place, marked, shared.places[0], shared.cut_inside);
#pragma unroll
  for (int i = 0; i < CANDIDATES; ++i)
    if (marked >> i & 1) picks[place[i]] = token[i];
  for (int at = count + threadIdx.x; at < TOP_K; at += THREADS) picks[at] = -1;
  __syncwarp();
  if (CLUSTER > 1) cluster_wait();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    index_top_k(const float* logits, const int* seats_of, const i64* lengths, int* picks, int seats, int context,
                i64 logit_pitch) {
  extern __shared__ __align__(16) u8 raw[];
  Shared& shared = *(Shared*)raw;
  const int query = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
  const int seat = __ldg(seats_of + query / QUERY_ROWS);
  const int length = (u32)seat < (u32)seats ? (int)min(max(__ldg(lengths + seat), (i64)0), (i64)context) : 0;
  const int visible = max(length - (QUERY_ROWS - 1 - query % QUERY_ROWS), 0);
  const int share = ((visible + CLUSTER - 1) / CLUSTER + 3) / 4 * 4;
  Part part;
  part.scores = logits + query * logit_pitch;
  part.begin = min(rank * share, visible);
  part.end = min(part.begin + share, visible);
  part.chunks = max((part.end - part.begin + CHUNK - 1) / CHUNK, 1);
  picks += (i64)query * TOP_K;
  if (GUESSES) {
    const bool everything = visible <= MOST;
    const float least = everything ? NONE : guess(part.scores, visible, shared);
    const u32 own = gather_candidates(part, least, shared);
    if (threadIdx.x == 0) shared.candidate_count = own;
    meet_blocks<CLUSTER>();
    u32 begin[CLUSTER + 1];
    begin[0] = 0;
#pragma unroll
    for (int other = 0; other < CLUSTER; ++other)
      begin[other + 1] = begin[other] + load_far_u32(in_block(shared_address(&shared.candidate_count), other));
    if (begin[CLUSTER] <= MOST && (everything || begin[CLUSTER] >= TOP_K)) {
      if (rank == 0) {
        pick_candidates(part.scores, begin, shared, picks);
      } else {
        cluster_arrive();
        cluster_wait();
      }
      return;
    }
  }
  pick_by_rounds(part, shared, rank, picks);
}
