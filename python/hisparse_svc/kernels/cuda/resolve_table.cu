// Picks -> hot rows by exact LRU, for contexts that a table in shared memory can hold. One block per request.
//
//   words before   [ o o h o h o o h ... ]        o: not picked this step, h: picked and hot
//   words after    [ o o o ... | h h h | n n ]    n: picked and missing, each in the slot of one of the oldest o
//                    oldest             newest
//
//   shared:  pick  u32[PICKS2]    the token of pick j                    res   u32[PICKS2]   its slot, once known
//            table u16[TABLE]     token -> 4j, never cleared: an entry counts only if pick j is that token
//            victim u16[PICKS]    slots of the oldest o                  tally u32[64]       per-warp counts
//
//   1  every pick writes its number to the table            -- barrier --
//   2  every word asks the table whether it is picked: a hit hands its slot to the pick; stale words are counted
//                                                           -- barrier --
//   3  no pick left without a slot: write words back as [stale | hits], done
//   4  else leaders of missing tokens are counted           -- barrier --
//      words go back as [stale survivors | hits], the first m stale ones give their slots
//                                                           -- barrier --
//      leaders take those slots, are listed as misses, and become the last words
//   5  tokens picked twice copy the slot of their leader    -- barrier --
//
// Words are read once, before the first barrier, and live in registers until they are written back in place.
// A table entry holds 4j so that one masked offset addresses both `pick` and `res`.
// A token that several query rows pick is led by the first of them; picked twice by one row, by either.
#include "parts.cuh"
#include "words.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int WORDS = (HOT + THREADS - 1) / THREADS;         // words of one thread
constexpr int MINE = (PICKS + THREADS - 1) / THREADS;        // picks of one thread
constexpr int PACKS = (WORDS + 3) / 4;                       // four counters of one byte each to a register
constexpr u32 NO_TOKEN = 0xFFFFFFFFu;
constexpr u32 OFFSET_MASK = 4 * (PICKS2 - 1);

static_assert(THREADS % WARP == 0 && WARPS <= WARP, "one warp adds up the tallies");
static_assert((PICKS2 & (PICKS2 - 1)) == 0 && PICKS <= PICKS2 && PICKS2 <= 16384, "4j must fit 16 bits");
static_assert((TABLE & (TABLE - 1)) == 0 && CONTEXT <= TABLE, "tokens are masked into the table");
static_assert(QUERY_ROWS * TOP_K == PICKS && PICKS <= HOT, "a step's picks must fit the hot rows");

struct Shared {
  u32 pick[PICKS2];
  u32 res[PICKS2];
  u32 tally[2 * WARP];
  u16 victim[PICKS];
  u16 table[TABLE];
};
static_assert(sizeof(Shared) == SHARED_BYTES, "launch.py asks for what this kernel uses");

__device__ __forceinline__ u32& at_offset(u32* array, u32 offset) { return *(u32*)((u8*)array + offset); }

extern "C" __global__ void __launch_bounds__(THREADS)
resolve(const int* __restrict__ seats, const int* __restrict__ picks, const i64* __restrict__ lengths,
        const int* __restrict__ newest_from, word* words, int* rows, int2* misses, int* counts, int seat_count,
        PARTS_PARAMETERS) {
  const Parts parts = PARTS_GIVEN;
  extern __shared__ __align__(16) u8 shared_bytes[];
  Shared& sh = *(Shared*)shared_bytes;
  const int tid = threadIdx.x, lane = lane_id(), warp = warp_id();
  if constexpr (PARTED) next_kernel_may_start();             // the gather: it has its SMs when this one is done
  const int first_pick = warp * WARP * MINE + lane;        // pick k of this thread is first_pick + 32k
  int* out = global_pointer(rows + (i64)blockIdx.x * PICKS + first_pick);

  int picked[MINE];
#pragma unroll
  for (int k = 0; k < MINE; k++) {
    const int j = first_pick + WARP * k;
    picked[k] = j < PICKS ? __ldg(picks + (i64)blockIdx.x * PICKS + j) : -1;
  }
  const int seat = __ldg(seats + blockIdx.x);
  if ((u32)seat >= (u32)seat_count) {                        // a padded request of a captured graph is inert
#pragma unroll
    for (int k = 0; k < MINE; k++)
      if (first_pick + WARP * k < PICKS) out[WARP * k] = -1;
    if (tid == 0) counts[blockIdx.x] = 0;
    if constexpr (PARTED) write_no_parts(parts);
    return;
  }
  word* list = global_pointer(words + (i64)seat * HOT);
  const int first_word = warp * WARP * WORDS + lane;       // word k of this thread is first_word + 32k
  word w[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const int i = first_word + WARP * k;
    w[k] = i < HOT ? list[i] : 0;
  }
  Request request;
  request.load(seat, lengths, newest_from);

  // 1: picks into the table, those of the newest page too: the request's length is still on its way. Later query rows
  // first, so that the first row's entry stays.
#pragma unroll
  for (int k = 0; k < MINE; k++) {
    const int j = first_pick + WARP * k;
    if (j < PICKS2) {
      sh.pick[j] = (u32)picked[k] < CONTEXT ? picked[k] : NO_TOKEN;
      sh.res[j] = UNRESOLVED;
    }
  }
  for (int j = MINE * THREADS + tid; j < PICKS2; j += THREADS) sh.pick[j] = NO_TOKEN;
#pragma unroll
  for (int row = QUERY_ROWS - 1; row >= 0; row--) {
#pragma unroll
    for (int k = 0; k < MINE; k++) {
      const int j = first_pick + WARP * k;
      if ((u32)picked[k] < CONTEXT && (QUERY_ROWS == 1 || j / TOP_K == row)) sh.table[picked[k]] = (u16)(4 * j);
    }
    __syncthreads();
  }
  u32 wanted = 0;                                            // picks to look up
#pragma unroll
  for (int k = 0; k < MINE; k++) wanted += (u32)picked[k] < request.looked_up;
  wanted = __reduce_add_sync(ALL_LANES, wanted);

  // 2: which words are picked. All loads before the first store: the compiler may not move a load over a store.
  u32 offset[WORDS], there[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; k++) offset[k] = sh.table[token_of(w[k]) & (TABLE - 1)] & OFFSET_MASK;
#pragma unroll
  for (int k = 0; k < WORDS; k++) there[k] = at_offset(sh.pick, offset[k]);
  bool hit[WORDS];
  u32 before[PACKS], packs_before[PACKS], stale_in_warp = 0;   // stale words before mine: in its pack, in earlier packs
#pragma unroll
  for (int g = 0; g < PACKS; g++) {
    u32 mine = 0;
#pragma unroll
    for (int i = 0; i < 4 && 4 * g + i < WORDS; i++) {
      const int k = 4 * g + i;
      const bool exists = HOT % THREADS == 0 || first_word + WARP * k < HOT;
      hit[k] = exists && there[k] == token_of(w[k]) && there[k] < request.looked_up;
      if (hit[k]) at_offset(sh.res, offset[k]) = slot_of(w[k]);
      else if (exists) mine += 1u << (8 * i);
    }
    const u32 upto = inclusive_sum(mine), all = __shfl_sync(ALL_LANES, upto, WARP - 1);
    before[g] = upto - mine + all * 0x01010100u;           // byte i also counts the pack's bytes below i
    packs_before[g] = stale_in_warp;
    stale_in_warp += all * 0x01010101u >> 24;              // at most 128
  }
  if (lane == 0) sh.tally[warp] = stale_in_warp | wanted << 16;
  __syncthreads();

  const u32 tally = lane < WARPS ? sh.tally[lane] : 0;
  u32 slot[MINE];
#pragma unroll
  for (int k = 0; k < MINE; k++)
    slot[k] = (u32)picked[k] < request.looked_up ? sh.res[first_pick + WARP * k] : request.other_slot(picked[k]);
  const u32 total = __reduce_add_sync(ALL_LANES, tally);
  const u32 stale_before = __reduce_add_sync(ALL_LANES, lane < warp ? tally : 0) & 0xFFFF;
  const int stale = total & 0xFFFF;
  const int unserved = (int)(total >> 16) - (HOT - stale);   // picks that no word served: misses and repeated picks

  int missing = 0;
  u32 late = 0;                                              // bit k: the row of pick k is on its way
  u32 misses_before = 0, leaders[MINE] = {}, follows[MINE];   // ballots of leading picks; offset of an unserved leader
  u32 page[MINE];                                            // PARTED: of a leading pick, on its way while others are counted
  if (unserved != 0) {
    // 4: a pick without a slot leads if the table has its number; else its leader may have been served already.
    u32 in_warp = 0;
#pragma unroll
    for (int k = 0; k < MINE; k++) {
      const int j = first_pick + WARP * k;
      bool leads = false;
      follows[k] = NO_TOKEN;
      if (slot[k] == UNRESOLVED) {
        const u32 leader = sh.table[picked[k]];
        leads = leader == 4 * j;
        if (!leads) {
          slot[k] = at_offset(sh.res, leader);
          if (slot[k] == UNRESOLVED) follows[k] = leader;
        }
        if (slot[k] == UNRESOLVED) late |= 1u << k;
      }
      if constexpr (PARTED) page[k] = leads ? page_of(parts, seat, picked[k]) : 0;
      leaders[k] = __ballot_sync(ALL_LANES, leads);
      in_warp += __popc(leaders[k]);
    }
    if (lane == 0) sh.tally[WARP + warp] = in_warp;
    __syncthreads();
    const u32 counted = lane < WARPS ? sh.tally[WARP + lane] : 0;
    missing = __reduce_add_sync(ALL_LANES, counted);
    misses_before = __reduce_add_sync(ALL_LANES, lane < warp ? counted : 0);
  }

  // 3, 4: words back in place.
  const int first_hit = stale - missing + first_word - (int)stale_before;
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const u32 stale_in_front = packs_before[k / 4] + (before[k / 4] >> (8 * (k % 4)) & 0xFF);
    const int to = hit[k] ? first_hit + WARP * k - (int)stale_in_front : (int)(stale_before + stale_in_front) - missing;
    if (HOT % THREADS != 0 && first_word + WARP * k >= HOT) continue;
    if (to >= 0) list[(u32)to] = w[k];
    else sh.victim[to + missing] = (u16)slot_of(w[k]);
  }
  if (tid == 0) counts[blockIdx.x] = missing;
  if (missing != 0) {
    __syncthreads();
    int2* listed = global_pointer(misses + (i64)blockIdx.x * PICKS);
#pragma unroll
    for (int k = 0; k < MINE; k++) {
      if (leaders[k] >> lane & 1) {
        const u32 i = misses_before + __popc(leaders[k] & lanes_below());
        slot[k] = sh.victim[i];
        sh.res[first_pick + WARP * k] = slot[k];
        listed[i] = make_int2(picked[k], request.first_row + (int)slot[k]);
        if constexpr (PARTED)
          parts.copies[(i64)blockIdx.x * PICKS + i] = copy_of(page[k], picked[k], request.first_row + (int)slot[k]);
        list[(u32)(HOT - missing) + i] = pack(slot[k], picked[k]);
      }
      misses_before += __popc(leaders[k]);
    }
    // 5: repeated picks whose leader was missing.
    if (unserved != missing) {
      __syncthreads();
#pragma unroll
      for (int k = 0; k < MINE; k++)
        if (follows[k] != NO_TOKEN) slot[k] = at_offset(sh.res, follows[k]);
    }
  }
  int row[MINE];
#pragma unroll
  for (int k = 0; k < MINE; k++) {
    row[k] = request.first_row + (int)slot[k];
    if (first_pick + WARP * k < PICKS) out[WARP * k] = row[k];
  }
  if constexpr (PARTED) write_parts(parts, sh.tally, row, late, [&](int k) { return first_pick + WARP * k; });
}
