// Picks -> hot rows by exact LRU, for contexts of up to a million tokens. One block per request.
//
//   words before and after: as in resolve_table.cu, but tokens that arrive in one step lie by token, not as picked;
//   so are the misses listed, which is host address order where a request's pages are contiguous.
//
//   shared:  bits   u64[BLOCKS]   one bit per token of the context: picked       before u16[BLOCKS]  bits set below, in
//                                                                                                    the warp's stretch
//            token  u32[PICKS]    the token of rank r, where missing             res    u16[PICKS]   its slot, once known
//            victim u16[PICKS]    slots of the oldest stale words                tally  u32[3 * 32]  per-warp counts
//
//   rank of a token = bits set below it = [ of earlier warps ] + before[its block] + [ inside its block ]
//
//   1  clear bits | set bits | count them                                        -- 3 barriers --
//   2  every word looks for its bit: a hit hands its slot to its rank; stale words are counted      -- barrier --
//   3  picks take the slot of their rank; words go back as [stale survivors | hits];
//      misses = ranks - hits; none: done                                         -- barrier --
//   4  ranks without a slot take the slots of the oldest stale words, are listed, and become the last words
//                                                                                -- barrier --
//      picks of those ranks take their slot
#include "parts.cuh"
#include "words.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int WORDS = (HOT + THREADS - 1) / THREADS;
constexpr int MINE = (PICKS + THREADS - 1) / THREADS;
constexpr int RANKS = MINE;                                  // ranks of one thread
constexpr int BLOCK_TOKENS = 64;
constexpr int STRETCH = BLOCKS / THREADS;                    // blocks of one thread, side by side
constexpr int WARP_BLOCKS = STRETCH * WARP;
constexpr u16 NO_SLOT = 0xFFFF;

static_assert(THREADS % WARP == 0 && WARPS <= WARP, "one warp adds up the tallies");
static_assert(BLOCKS % THREADS == 0 && CONTEXT <= BLOCKS * BLOCK_TOKENS, "every token needs a bit");
static_assert(PICKS <= HOT, "a step's picks must fit the hot rows");

struct Shared {
  u64 bits[BLOCKS];
  u32 token[PICKS];
  u32 tally[3 * WARP];
  u16 before[BLOCKS];
  u16 res[PICKS];
  u16 victim[PICKS];
};
static_assert(sizeof(Shared) == SHARED_BYTES, "launch.py asks for what this kernel uses");

__device__ __forceinline__ u64 bits_below(u64 bits, u32 token) {
  return bits & ((1ull << (token % BLOCK_TOKENS)) - 1);
}

extern "C" __global__ void __launch_bounds__(THREADS)
resolve(const int* __restrict__ seats, const int* __restrict__ picks, const i64* __restrict__ lengths,
        const int* __restrict__ newest_from, word* words, int* rows, int2* misses, int* counts, int seat_count,
        PARTS_PARAMETERS) {
  const Parts parts = PARTS_GIVEN;
  extern __shared__ __align__(16) u8 shared_bytes[];
  Shared& sh = *(Shared*)shared_bytes;
  const int tid = threadIdx.x, lane = lane_id(), warp = warp_id();
  if constexpr (PARTED) next_kernel_may_start();             // the gather: it has its SMs when this one is done
  int* out = global_pointer(rows + (i64)blockIdx.x * PICKS + tid);

  int picked[MINE];
#pragma unroll
  for (int k = 0; k < MINE; k++) {
    const int j = k * THREADS + tid;
    picked[k] = j < PICKS ? __ldg(picks + (i64)blockIdx.x * PICKS + j) : -1;
  }
  const int seat = __ldg(seats + blockIdx.x);
  if ((u32)seat >= (u32)seat_count) {                        // a padded request of a captured graph is inert
#pragma unroll
    for (int k = 0; k < MINE; k++)
      if (k * THREADS + tid < PICKS) out[k * THREADS] = -1;
    if (tid == 0) counts[blockIdx.x] = 0;
    if constexpr (PARTED) write_no_parts(parts);
    return;
  }
  word* list = global_pointer(words + (i64)seat * HOT);
  const int first_word = warp * WARP * WORDS + lane;
  word w[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const int i = first_word + WARP * k;
    w[k] = i < HOT ? list[i] : 0;
  }
  Request request;
  request.load(seat, lengths, newest_from);

  // 1: the picked tokens as bits, and how many lie below each block.
#pragma unroll
  for (int k = 0; k < STRETCH; k++) sh.bits[k * THREADS + tid] = 0;
#pragma unroll
  for (int k = 0; k < MINE; k++)
    if (k * THREADS + tid < PICKS) sh.res[k * THREADS + tid] = NO_SLOT;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < MINE; k++)
    if ((u32)picked[k] < request.looked_up) atomicOr((u32*)sh.bits + picked[k] / WARP, 1u << (picked[k] % WARP));
  __syncthreads();
  u32 own = 0, below[STRETCH];
#pragma unroll
  for (int k = 0; k < STRETCH; k++) {
    below[k] = own;
    own += __popcll(sh.bits[tid * STRETCH + k]);
  }
  const u32 upto = inclusive_sum(own);
#pragma unroll
  for (int k = 0; k < STRETCH; k++) sh.before[tid * STRETCH + k] = (u16)(upto - own + below[k]);
  if (lane == WARP - 1) sh.tally[warp] = upto;
  __syncthreads();
  const u32 warp_bits = lane < WARPS ? sh.tally[lane] : 0;
  const u32 warps_upto = inclusive_sum(warp_bits), of_earlier_warps = warps_upto - warp_bits;   // lane i: of warp i
  const int ranks = __shfl_sync(ALL_LANES, warps_upto, WARP - 1);
  const auto rank_of = [&](u32 token, u64 bits, u32 before_block) {     // every lane of the warp calls it
    const u32 earlier = __shfl_sync(ALL_LANES, of_earlier_warps, token / (BLOCK_TOKENS * WARP_BLOCKS));
    return earlier + before_block + __popcll(bits_below(bits, token));
  };

  // 2: which words are picked.
  u32 stale_ballot[WORDS], stale_in_warp = 0;
  u64 word_bits[WORDS];
  u32 word_before[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const u32 token = token_of(w[k]);
    const bool exists = token < CONTEXT && (HOT % THREADS == 0 || first_word + WARP * k < HOT);
    const u32 block = exists ? token / BLOCK_TOKENS : 0;
    word_bits[k] = exists ? sh.bits[block] : 0;
    word_before[k] = sh.before[block];
  }
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const u32 token = token_of(w[k]);
    const bool hit = word_bits[k] >> (token % BLOCK_TOKENS) & 1;
    const u32 rank = rank_of(token, word_bits[k], word_before[k]);
    if (hit) sh.res[rank] = (u16)slot_of(w[k]);
    stale_ballot[k] = __ballot_sync(ALL_LANES, !hit && (HOT % THREADS == 0 || first_word + WARP * k < HOT));
    stale_in_warp += __popc(stale_ballot[k]);
  }
  if (lane == 0) sh.tally[WARP + warp] = stale_in_warp;
  __syncthreads();

  // 3: picks take slots, words go back.
  const u32 tally = lane < WARPS ? sh.tally[WARP + lane] : 0;
  const int stale = __reduce_add_sync(ALL_LANES, tally);
  u32 stale_before = __reduce_add_sync(ALL_LANES, lane < warp ? tally : 0);
  const int missing = ranks - (HOT - stale);
  u32 rank[MINE], slot[MINE], late = 0;                       // bit k of late: the row of pick k is on its way
#pragma unroll
  for (int k = 0; k < MINE; k++) {
    const bool wanted = (u32)picked[k] < request.looked_up;
    const u32 token = wanted ? picked[k] : 0, block = token / BLOCK_TOKENS;
    rank[k] = rank_of(token, sh.bits[block], sh.before[block]);
    slot[k] = !wanted ? request.other_slot(picked[k]) : sh.res[rank[k]] == NO_SLOT ? UNRESOLVED : sh.res[rank[k]];
    if (slot[k] == UNRESOLVED) sh.token[rank[k]] = token, late |= 1u << k;
  }
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const int i = first_word + WARP * k;
    const bool is_stale = stale_ballot[k] >> lane & 1;
    const int stale_in_front = stale_before + __popc(stale_ballot[k] & lanes_below());
    const int to = is_stale ? stale_in_front - missing : stale - missing + i - stale_in_front;
    stale_before += __popc(stale_ballot[k]);
    if (HOT % THREADS != 0 && i >= HOT) continue;
    if (to >= 0) list[(u32)to] = w[k];
    else sh.victim[stale_in_front] = (u16)slot_of(w[k]);
  }
  if (tid == 0) counts[blockIdx.x] = missing;

  if (missing != 0) {
    // 4: ranks without a slot, in warp-striped order.
    u32 missing_ballot[RANKS], in_warp = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < RANKS; k++) {
      const int r = warp * WARP * RANKS + WARP * k + lane;
      missing_ballot[k] = __ballot_sync(ALL_LANES, r < ranks && sh.res[r] == NO_SLOT);
      in_warp += __popc(missing_ballot[k]);
    }
    if (lane == 0) sh.tally[2 * WARP + warp] = in_warp;
    __syncthreads();
    u32 misses_before =
        __reduce_add_sync(ALL_LANES, lane < warp && lane < WARPS ? sh.tally[2 * WARP + lane] : 0);
    int2* listed = global_pointer(misses + (i64)blockIdx.x * PICKS);
#pragma unroll
    for (int k = 0; k < RANKS; k++) {
      const int r = warp * WARP * RANKS + WARP * k + lane;
      if (missing_ballot[k] >> lane & 1) {
        const u32 i = misses_before + __popc(missing_ballot[k] & lanes_below());
        const u32 taken = sh.victim[i], token = sh.token[r];
        sh.res[r] = (u16)taken;
        listed[i] = make_int2(token, request.first_row + (int)taken);
        if constexpr (PARTED)
          parts.copies[(i64)blockIdx.x * PICKS + i] =
              copy_of(page_of(parts, seat, token), token, request.first_row + (int)taken);
        list[(u32)(HOT - missing) + i] = pack(taken, token);
      }
      misses_before += __popc(missing_ballot[k]);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < MINE; k++)
      if (slot[k] == UNRESOLVED) slot[k] = sh.res[rank[k]];
  }
  int row[MINE];
#pragma unroll
  for (int k = 0; k < MINE; k++) {
    row[k] = request.first_row + (int)slot[k];
    if (k * THREADS + tid < PICKS) out[k * THREADS] = row[k];
  }
  if constexpr (PARTED) write_parts(parts, sh.tally, row, late, [&](int k) { return k * THREADS + tid; });
}
