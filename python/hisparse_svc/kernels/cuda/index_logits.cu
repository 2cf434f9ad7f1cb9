// Logits of the indexer: keys stream through a ring of whole pages, and each page is one product with all heads.
//
//   pages of all requests in a row, cut into one equal share per block
//   producer warp    page map ──► one bulk copy of 8,448 bytes (64 keys, 64 scales) per page ──► ring of STAGES
//   warpgroup g      pages g, g + GROUPS, …:   S (64 tokens x heads) = K Qᵀ  by wgmma, K from registers
//                    logit = scale x Σ over heads of weight x max(S, 0),  summed over 4 lanes: 16 tokens a warp
//
// A page lies row after row, which the tensor core cannot read from shared memory. In registers it may be in any order
// of its 128 numbers as long as Q is in the same one: lane t of a row's four takes bytes 32 t .. 32 t + 31, so number
// 32 t + 4 w + b of a key is product column 16 w + 4 t + b, and Q is stored that way.
#include "hopper.cuh"

constexpr int WIDTH = 128, PAGE_BYTES = PAGE * (WIDTH + 4), SCALES_AT = PAGE * WIDTH;
constexpr int GROUP_THREADS = 128;
constexpr int BLOCK_HEADS = HEADS % 64 == 0 ? 64 : 32;       // heads of one product
constexpr int PADDED_HEADS = (HEADS + BLOCK_HEADS - 1) / BLOCK_HEADS * BLOCK_HEADS;
constexpr int HEAD_BLOCKS = PADDED_HEADS / BLOCK_HEADS;
constexpr int PASSES = (QUERY_ROWS + ROWS - 1) / ROWS;       // query rows of a request are done ROWS at a time
constexpr int QUERY_BYTES = PADDED_HEADS * WIDTH;            // one query row in shared memory
constexpr int LANE_WEIGHTS = PADDED_HEADS / 4;
static_assert(STAGES % GROUPS == 0, "a stage always belongs to the same group, or its parity says too little");

struct Shared {
  u8 pages[STAGES][PAGE_BYTES];
  alignas(1024) u8 queries[GROUPS][ROWS][QUERY_BYTES];
  float weights[GROUPS][ROWS][PADDED_HEADS];
  int2 what[STAGES];                                         // unit (request and pass), page of the request
  alignas(8) u64 full[STAGES], empty[STAGES];
  int first_unit, tiles;
};
static_assert(sizeof(Shared) + 1024 <= SHARED_BYTES, "the host counts the same bytes");

constexpr int UNMAPPED = 1 << 30;                            // flag beside the page of the request

struct Call {
  const u8* q;                                               // [batch][QUERY_ROWS][HEADS][WIDTH]
  const float* weights;                                      // [batch][QUERY_ROWS][HEADS]
  const u8* keys;                                            // [key_pages], key_pitch bytes apart
  const int* page_map;                                       // [seats][map_pages]
  const int* seats_of;                                       // [batch]
  const i64* lengths;                                        // [seats]
  float* logits;                                             // [batch][QUERY_ROWS], logit_pitch apart
  int batch, seats, context, map_pages, key_pages;
  i64 key_pitch, logit_pitch;
};

// S += K Qᵀ: 64 tokens of a warpgroup times N heads, 32 numbers of each.
template <int N>
__device__ __forceinline__ void multiply_e4m3(float (&s)[N / 2], const u32 (&a)[4], u64 b, bool add);
template <>
__device__ __forceinline__ void multiply_e4m3<64>(float (&s)[32], const u32 (&a)[4], u64 b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;"
      " wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13,"
      " %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
      " {%32, %33, %34, %35}, %36, p, 1, 1; }"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), "+f"(s[8]),
        "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]), "+f"(s[16]),
        "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]), "+f"(s[24]),
        "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
template <>
__device__ __forceinline__ void multiply_e4m3<32>(float (&s)[16], const u32 (&a)[4], u64 b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0;"
      " wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13,"
      " %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1; }"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), "+f"(s[8]),
        "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
template <int N>
__device__ __forceinline__ void fence_registers(float (&s)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(s[i])::"memory");
}

// Rows of 128 bytes, 16-byte chunks swizzled by the row: what wgmma calls K-major with the 128-byte swizzle.
__device__ __forceinline__ u64 descriptor(u32 at) {
  return (u64)((at & 0x3FFFF) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ uint4 load_shared16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}

__device__ __forceinline__ int seat_of(const Call& call, int unit) {
  const int seat = unit < call.batch * PASSES ? __ldg(call.seats_of + unit / PASSES) : -1;
  return (u32)seat < (u32)call.seats ? seat : -1;
}
__device__ __forceinline__ int length_of(const Call& call, int seat) {
  return seat < 0 ? 0 : (int)min(max(__ldg(call.lengths + seat), (i64)0), (i64)call.context);
}
__device__ __forceinline__ int last_row_of(int unit) { return min((unit % PASSES + 1) * ROWS, QUERY_ROWS) - 1; }
// Tokens that a query row sees; a unit has pages for its last one.
__device__ __forceinline__ int visible_to(int length, int row) { return max(length - (QUERY_ROWS - 1 - row), 0); }
__device__ __forceinline__ int tiles_of(const Call& call, int unit, int seat) {
  return (visible_to(length_of(call, seat), last_row_of(unit)) + PAGE - 1) / PAGE;
}
__device__ __forceinline__ int tiles_of(const Call& call, int unit) { return tiles_of(call, unit, seat_of(call, unit)); }

// This block's share of all pages: where it starts, and how many.
struct Share {
  int unit, tile, count;
};
// Tiles of 32 units, one a lane. The first FAST x 32 are loaded at once and kept: a load waits for the memory's latency.
constexpr int FAST = 4;
struct Tiles {
  int kept[FAST];
  __device__ __forceinline__ explicit Tiles(const Call& call) {
    int seat[FAST];
#pragma unroll
    for (int i = 0; i < FAST; ++i) seat[i] = seat_of(call, i * WARP + lane_id());
#pragma unroll
    for (int i = 0; i < FAST; ++i) kept[i] = tiles_of(call, i * WARP + lane_id(), seat[i]);
  }
};
__device__ __forceinline__ Share share_of_block(const Call& call) {
  const int units = call.batch * PASSES;
  const Tiles tiles(call);
  u32 total = 0, kept = 0;
#pragma unroll
  for (int i = 0; i < FAST; ++i) kept += tiles.kept[i];
  for (int base = FAST * WARP; base < units; base += WARP) kept += tiles_of(call, base + lane_id());
  total = __reduce_add_sync(ALL_LANES, kept);
  const u32 begin = (u32)((u64)total * blockIdx.x / gridDim.x), end = (u32)((u64)total * (blockIdx.x + 1) / gridDim.x);
  Share share{0, 0, (int)(end - begin)};
  u32 before = 0;
  const auto holds_begin = [&](int base, u32 mine) {
    const u32 sum = inclusive_sum(mine), holds = __ballot_sync(ALL_LANES, begin < before + sum);
    if (holds) {
      const int lane = __ffs(holds) - 1;
      share.unit = base + lane;
      share.tile = begin - before - __shfl_sync(ALL_LANES, sum - mine, lane);
    }
    before += __shfl_sync(ALL_LANES, sum, WARP - 1);
    return holds != 0;
  };
#pragma unroll
  for (int i = 0; i < FAST; ++i)
    if (holds_begin(i * WARP, tiles.kept[i])) return share;
  for (int base = FAST * WARP; base < units; base += WARP)
    if (holds_begin(base, tiles_of(call, base + lane_id()))) return share;
  return share;
}

__device__ __forceinline__ void produce(const Call& call, Share share, Shared& shared) {
  int stage = 0;
  u32 parity = 1;                                            // the first round finds every stage free
  for (; share.count > 0; ++share.unit, share.tile = 0) {
    const int seat = seat_of(call, share.unit), tiles = tiles_of(call, share.unit, seat);
    const int until = min(tiles, share.tile + share.count);
    share.count -= until - share.tile;
    for (int base = share.tile; base < until; base += WARP) {
      const int mine = base + lane_id();
      const int page = mine < until ? __ldg(call.page_map + (i64)seat * call.map_pages + mine) : -1;
      for (int at = 0; at < min(WARP, until - base); ++at) {
        const int key_page = __shfl_sync(ALL_LANES, page, at);
        if (lane_id() == 0) {
          barrier_wait(shared_address(&shared.empty[stage]), parity);
          const u32 full = shared_address(&shared.full[stage]);
          const bool mapped = (u32)key_page < (u32)call.key_pages;
          shared.what[stage] = make_int2(share.unit, base + at | (mapped ? 0 : UNMAPPED));
          if (mapped) {
            barrier_arrive_expecting(full, PAGE_BYTES);
            copy_row(shared_address(shared.pages[stage]), call.keys + key_page * call.key_pitch, PAGE_BYTES, full);
          } else {
            barrier_arrive(full);
          }
        }
        __syncwarp();
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
    }
  }
}

// The queries and weights of a unit, by one group for itself.
__device__ __forceinline__ void load_queries(const Call& call, int unit, Shared& shared, int group) {
  const int thread = threadIdx.x % GROUP_THREADS, first = unit % PASSES * ROWS;
  for (int row = 0; row < ROWS; ++row) {
    const bool there = first + row < QUERY_ROWS;
    const i64 query = (i64)(unit / PASSES) * QUERY_ROWS + first + row;
    u8* to = shared.queries[group][row];
    for (int item = thread; item < PADDED_HEADS * (WIDTH / 16); item += GROUP_THREADS) {
      const int head = item / 8, chunk = item % 8;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (there && head < HEADS) v = __ldg((const uint4*)(call.q + (query * HEADS + head) * WIDTH) + chunk);
      const int lane = chunk / 2, word = chunk % 2 * 4;      // bytes 32 lane + 4 word, see above
      u8* line = to + head * WIDTH + 4 * lane;
      *(u32*)(line + ((word + 0 ^ head % 8) << 4)) = v.x;
      *(u32*)(line + ((word + 1 ^ head % 8) << 4)) = v.y;
      *(u32*)(line + ((word + 2 ^ head % 8) << 4)) = v.z;
      *(u32*)(line + ((word + 3 ^ head % 8) << 4)) = v.w;
    }
    for (int head = thread; head < PADDED_HEADS; head += GROUP_THREADS)
      shared.weights[group][row][head] = there && head < HEADS ? __ldg(call.weights + query * HEADS + head) : 0.f;
  }
  async_follows_stores();
}

// The keys of a lane: rows `lane / 4` and 8 below it, of each 32 numbers the 8 of its place. Odd rows read their two
// halves the other way round, so that eight lanes touch all banks once.
__device__ __forceinline__ void load_keys(u32 (&a)[4][4], u32 tokens_at) {
  const int row = lane_id() / 4, odd = row % 2;
  const u32 at = tokens_at + row * WIDTH + lane_id() % 4 * 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 x = load_shared16(at + half * 8 * WIDTH + odd * 16), y = load_shared16(at + half * 8 * WIDTH + 16 - odd * 16);
    a[0][half] = odd ? y.x : x.x, a[0][half + 2] = odd ? y.y : x.y;
    a[1][half] = odd ? y.z : x.z, a[1][half + 2] = odd ? y.w : x.w;
    a[2][half] = odd ? x.x : y.x, a[2][half + 2] = odd ? x.y : y.y;
    a[3][half] = odd ? x.z : y.z, a[3][half + 2] = odd ? x.w : y.w;
  }
}

__device__ __forceinline__ void load_weights(float (&w)[LANE_WEIGHTS], const float* weights) {
#pragma unroll
  for (int block = 0; block < PADDED_HEADS / 8; ++block) {
    const float2 pair = load_f32x2(shared_address(weights + block * 8 + lane_id() % 4 * 2));
    w[2 * block] = pair.x, w[2 * block + 1] = pair.y;
  }
}

__device__ __forceinline__ void consume(const Call& call, Shared& shared, int group) {
  const int warp = warp_id() % 4, token_of_lane = warp * 16 + lane_id() / 4 + lane_id() % 2 * 8;
  const int count = shared.tiles;
  int unit = -1, length = 0, stage = group;
  u32 parity = 0;
  float w[LANE_WEIGHTS];
  for (int tile = group; tile < count; tile += GROUPS) {
    if (unit < 0) {                                          // the first queries arrive beside the first pages
      unit = shared.first_unit;
      load_queries(call, unit, shared, group);
      length = length_of(call, __ldg(call.seats_of + unit / PASSES));
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(GROUP_THREADS) : "memory");
      if (ROWS == 1) load_weights(w, shared.weights[group][0]);
    }
    barrier_wait(shared_address(&shared.full[stage]), parity);
    const int2 what = shared.what[stage];
    const u32 page_at = shared_address(shared.pages[stage]);
    u32 a[4][4];
    load_keys(a, page_at + warp * 16 * WIDTH);
    const float scale = load_f32(page_at + SCALES_AT + 4 * token_of_lane);
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(shared_address(&shared.empty[stage]));
    stage += GROUPS;
    if (stage >= STAGES) stage -= STAGES, parity ^= 1;

    if (what.x != unit) {
      unit = what.x;
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(GROUP_THREADS) : "memory");
      load_queries(call, unit, shared, group);
      length = length_of(call, __ldg(call.seats_of + unit / PASSES));
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(GROUP_THREADS) : "memory");
      if (ROWS == 1) load_weights(w, shared.weights[group][0]);
    }
    const int token = (what.y & ~UNMAPPED) * PAGE + token_of_lane, first = unit % PASSES * ROWS;
#pragma unroll 1
    for (int row = 0; row < ROWS; ++row) {
      if (first + row >= QUERY_ROWS) break;
      if (ROWS > 1) load_weights(w, shared.weights[group][row]);
      float upper = 0.f, lower = 0.f;                        // tokens lane / 4 and 8 behind
#pragma unroll
      for (int block = 0; block < HEAD_BLOCKS; ++block) {
        float s[BLOCK_HEADS / 2];
        const u32 q_at = shared_address(shared.queries[group][row]) + block * BLOCK_HEADS * WIDTH;
        fence_registers(s);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < 4; ++step) multiply_e4m3<BLOCK_HEADS>(s, a[step], descriptor(q_at + step * 32), step > 0);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        fence_registers(s);
        float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int i = 0; i < BLOCK_HEADS / 2; ++i)
          part[i % 4] += fmaxf(s[i], 0.f) * w[block * (BLOCK_HEADS / 4) + i / 4 * 2 + i % 2];
        upper += part[0] + part[1], lower += part[2] + part[3];
      }
      // Even lanes finish the upper token and odd ones the lower: half the shuffles of summing both everywhere.
      const float other = __shfl_xor_sync(ALL_LANES, lane_id() % 2 ? upper : lower, 1);
      float sum = (lane_id() % 2 ? lower : upper) + other;
      sum += __shfl_xor_sync(ALL_LANES, sum, 2);
      if (lane_id() % 4 < 2 && token < visible_to(length, first + row)) {
        const i64 query = (i64)(unit / PASSES) * QUERY_ROWS + first + row;
        call.logits[query * call.logit_pitch + token] = what.y & UNMAPPED ? __int_as_float(0xFF800000) : sum * scale;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    index_logits(const u8* q, const float* weights, const u8* keys, const int* page_map, const int* seats_of,
                 const i64* lengths, float* logits, int batch, int seats, int context, int map_pages, int key_pages,
                 i64 key_pitch, i64 logit_pitch) {
  extern __shared__ u8 raw[];
  Shared& shared = *(Shared*)(((u64)raw + 1023) & ~1023ull);
  const Call call{q,     weights, keys,    page_map,  seats_of,  lengths,   logits,
                  batch, seats,   context, map_pages, key_pages, key_pitch, logit_pitch};
  const int group = threadIdx.x / GROUP_THREADS;
  Share share;
  if (group == GROUPS) {                                     // the producer warp
    share = share_of_block(call);
    if (lane_id() == 0) shared.first_unit = share.unit, shared.tiles = share.count;
  } else if (warp_id() == 0) {
    if (lane_id() == 0) {
      for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(shared_address(&shared.full[stage]), 1);
        barrier_init(shared_address(&shared.empty[stage]), GROUP_THREADS / WARP);
      }
      barrier_init_done();
    }
  }
  __syncthreads();
  if (group == GROUPS)
    produce(call, share, shared);
  else
    consume(call, shared, group);
}
