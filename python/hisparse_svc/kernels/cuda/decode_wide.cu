// Sparse MLA decode of BF16 rows for 64 heads a block: heads in M, so that products are wide and few blocks read a row.
//
//   warpgroup 0       S (heads × TILE tokens) = Q Kᵀ, softmax, P to shared memory
//   warpgroups 1, 2   O (heads × 256 dimensions each) += P V
//   warpgroup 3       producers: rows in pieces of 16 bytes, in the swizzled order that products read
//
//   a tile            nine blocks of 64 numbers × TILE tokens, rows of 128 bytes; keys are all nine, values the first eight
//   in turn           Q Kᵀ of i alone ─ softmax of i beside P V of i − 1 ─ Q Kᵀ of i + 1 ─        another tile arrives
//
// Shared memory holds three tiles because two of the nine blocks of queries are in warpgroup 0's registers.
//
// Blocks of a cluster exchange tops and sums, then normalised outputs in bf16 through distributed shared memory; each
// finishes a SPLITS-th of the output, in a fixed order, so results repeat bit by bit.
#include "decode.cuh"
#include "wgmma.cuh"

constexpr int GROUP = 128;                                   // threads of a warpgroup
static_assert(TILE % 16 == 0, "whole products, and whole passes of the producers");
static_assert(!FP8 && HEADS == 64, "bf16 rows, one product high");
static_assert(THREADS == 4 * GROUP, "four warpgroups");

constexpr int BLOCK = TILE * 128;                            // 64 numbers of a tile
constexpr int QUERY_BLOCK = HEADS * 128;                     // and of all heads
constexpr int KEY_BLOCKS = KEY / 64, TILE_BYTES = KEY_BLOCKS * BLOCK;
constexpr int SHARED_BLOCKS = KEY_BLOCKS - HELD_BLOCKS;      // of queries, in shared memory; the last ones are held
constexpr int QUERY = 0;
constexpr int TILES = QUERY + SHARED_BLOCKS * QUERY_BLOCK;
constexpr int WEIGHTS = TILES + BUFFERS * TILE_BYTES;        // [head][token]
constexpr int MASKS = WEIGHTS + HEADS * TILE * 2;            // [buffer][token]
constexpr int KEPT = MASKS + BUFFERS * TILE * 4;             // [head]: what older outputs are multiplied by
constexpr int FULL = KEPT + HEADS * 4;
constexpr int EMPTY = FULL + 8 * BUFFERS;
constexpr int WEIGHTS_FULL = EMPTY + 8 * BUFFERS, WEIGHTS_EMPTY = WEIGHTS_FULL + 8;
constexpr int SUMS = WEIGHTS_EMPTY + 8;                      // [block of the cluster][head]: top, sum
constexpr int END = SUMS + SPLITS * HEADS * 8;
static_assert(END <= SHARED_BYTES, "shared memory");

constexpr int PIECES = 16;                                   // of 16 bytes: a thread's output, exchanged
constexpr int PIECES_PER_BLOCK = (PIECES + SPLITS - 1) / SPLITS;
static_assert(SPLITS * PIECES_PER_BLOCK * 2 * GROUP * 16 <= WEIGHTS, "exchanged outputs fit in what tiles leave");

__device__ __forceinline__ void consumers_meet() { meet<1, 3 * GROUP>(); }

// 16 bytes to shared memory, zeros if not `real`; then an arrival once this thread's copies have landed.
__device__ __forceinline__ void copy_piece(u32 to, const u8* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Eight threads copy 128 consecutive bytes of a row; a thread has four rows.
constexpr int ROWS = TILE * 8 / GROUP;
__device__ __forceinline__ int row_of(int thread, int r) { return thread / 8 + r * (GROUP / 8); }
__device__ __forceinline__ void produce(const Call& call, const Share& share, u32 shared, int (&ahead)[ROWS], int thread) {
  const int piece = thread % 8, swizzled = (piece ^ (thread / 8 % 8)) << 4;
  int buffer = 0, parity = 1;
#pragma unroll 1
  for (int tile = share.begin; tile < share.last; tile++) {
    int current[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      current[r] = ahead[r];
      ahead[r] = pick_at<TILE>(call, share, tile + 1, row_of(thread, r));
    }
    wait_if_late(share, tile);
    barrier_wait(shared + EMPTY + 8 * buffer, parity);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const bool real = is_row(call, current[r]);
      const u8* from = call.rows + (real ? current[r] * call.row_pitch : 0) + piece * 16;
      const u32 to = shared + TILES + buffer * TILE_BYTES + row_of(thread, r) * 128 + swizzled;
#pragma unroll
      for (int block = 0; block < KEY_BLOCKS; block++) copy_piece(to + block * BLOCK, from + block * 128, real);
      if (piece == 0) store_f32(shared + MASKS + (buffer * TILE + row_of(thread, r)) * 4, real ? 0.f : -INFINITY);
    }
    arrive_when_copied(shared + FULL + 8 * buffer);
    __syncwarp();
    if (thread % WARP == 0) barrier_arrive(shared + FULL + 8 * buffer);
    if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
  }
  wait_if_late(share, share.last);
}

// By the warpgroups of values: the blocks that lie in shared memory.
__device__ __forceinline__ void load_query(const Call& call, const Share& share, u32 shared, int thread) {
  constexpr int PIECES = SHARED_BLOCKS * 8, LOADS = HEADS * PIECES / (2 * GROUP);
  uint4 x[LOADS];
#pragma unroll
  for (int l = 0; l < LOADS; l++) {
    const int at = thread + l * 2 * GROUP, head = at / PIECES, c = at % PIECES;
    const bool real = share.first_head + head < call.heads;
    const bf16* from = call.q + ((i64)share.query * call.heads + share.first_head + head) * KEY + c * 8;
    x[l] = real ? __ldg((const uint4*)from) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int l = 0; l < LOADS; l++) {
    const int at = thread + l * 2 * GROUP, head = at / PIECES, c = at % PIECES;
    store_u32x4(shared + QUERY + c / 8 * QUERY_BLOCK + head * 128 + ((c % 8 ^ head % 8) << 4), x[l].x, x[l].y, x[l].z,
                x[l].w);
  }
  products_see_stores();
}
// And those that the first warpgroup holds: A operands of 16 numbers each.
typedef u32 Held[HELD_BLOCKS * 4][4];
__device__ __forceinline__ void hold_query(Held& held, const Call& call, const Share& share, int w, int lane) {
#pragma unroll
  for (int k = 0; k < HELD_BLOCKS * 4; k++)
#pragma unroll
    for (int z = 0; z < 4; z++) {
      const int head = share.first_head + w * 16 + lane / 4 + z % 2 * 8;
      const int number = SHARED_BLOCKS * 64 + k * 16 + z / 2 * 8 + lane % 4 * 2;
      const bool real = head < call.heads;
      held[k][z] = real ? __ldg((const u32*)(call.q + ((i64)share.query * call.heads + head) * KEY + number)) : 0;
    }
}

typedef float Output[2][64];                                 // of column j: (head g, dimensions 8 j + 2 t, + 1), (g + 8, ..)
typedef float Logits[TILE / 2];                              // the same of tokens

__device__ __forceinline__ void rescale(Output& o, float kept0, float kept1) {
#pragma unroll
  for (int j = 0; j < 32; j++) {
    float* x = o[j / 16] + j % 16 * 4;
    x[0] *= kept0, x[1] *= kept0, x[2] *= kept1, x[3] *= kept1;
  }
}
__device__ __forceinline__ u32 weights_at(u32 shared, int w, int lane, int k) {
  const int row = w * 16 + lane % 16, piece = 2 * k + lane / 16;
  const int swizzle = TILE == 64 ? row % 8 : row / 4 % 2;     // 48: rows of 96 bytes, two to a bank
  return shared + WEIGHTS + row * TILE * 2 + ((piece ^ swizzle) << 4);
}
__device__ __forceinline__ void wait_rows(u32 shared, int buffer, int parity) {
  barrier_wait(shared + FULL + 8 * buffer, parity);
  products_see_stores();                                     // pieces were copied as ordinary stores are
}

// Weights of all tiles; gives tops and sums of heads g and g + 8.
__device__ __forceinline__ void score(const Call& call, const Held& held, u32 shared, int tiles, float (&top)[2],
                                      float (&sum)[2], int w, int lane) {
  const int t = lane % 4;
  int buffer = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < tiles; i++) {
    wait_rows(shared, buffer, parity);
    Logits s;
    u64 query = b_of_rows(shared + QUERY), keys = b_of_rows(shared + TILES + buffer * TILE_BYTES);
    asm volatile("" : "+l"(query), "+l"(keys));              // 36 sums of them, kept in registers, would spill
    products_fence();
#pragma unroll
    for (int k = 0; k < KEY / 16; k++) {
      const u64 key = keys + ((k / 4 * BLOCK + k % 4 * 32) >> 4);
      if (k == 0) multiply_shared_first_async(s, query, key);
      else if (k < SHARED_BLOCKS * 4) multiply_shared_async(s, query + ((k / 4 * QUERY_BLOCK + k % 4 * 32) >> 4), key);
      else multiply_async<BF16, false>(s, held[k - SHARED_BLOCKS * 4], key, 1);
    }
    products_commit();
    products_wait<0>();
    if (i > 0 && lane == 0) barrier_arrive(shared + WEIGHTS_FULL);   // its products would have slowed these
    float most[2] = {-INFINITY, -INFINITY}, kept[2], base[2];
#pragma unroll
    for (int j = 0; j < TILE / 8; j++) {
      const float2 mask = load_f32x2(shared + MASKS + (buffer * TILE + 8 * j + 2 * t) * 4);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float* x = s + 4 * j + 2 * r;
        x[0] = fmaf(x[0], call.scale_log2, mask.x), x[1] = fmaf(x[1], call.scale_log2, mask.y);
        most[r] = fmaxf(most[r], fmaxf(x[0], x[1]));
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + EMPTY + 8 * buffer);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(ALL_LANES, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(ALL_LANES, most[r], 2));
      const float next = most[r] > top[r] + LAZY ? most[r] : top[r];
      kept[r] = next == top[r] ? 1.f : exp2_fast(top[r] - next);
      top[r] = next;
      sum[r] *= kept[r];
      base[r] = next == -INFINITY ? 0.f : next;
    }
    u32 p[TILE / 16][4];
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float e0 = exp2_fast(s[4 * j + 2 * r] - base[r]), e1 = exp2_fast(s[4 * j + 2 * r + 1] - base[r]);
        sum[r] += e0 + e1;
        p[j / 2][j % 2 * 2 + r] = pack_bf16(e0, e1);
      }
    if (i > 0) barrier_wait(shared + WEIGHTS_EMPTY, (i - 1) & 1);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) store_matrices(weights_at(shared, w, lane, k), p[k][0], p[k][1], p[k][2], p[k][3]);
    if (t == 0) {
      store_f32(shared + KEPT + (w * 16 + lane / 4) * 4, kept[0]);
      store_f32(shared + KEPT + (w * 16 + lane / 4 + 8) * 4, kept[1]);
    }
    __syncwarp();
    if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
  }
  if (tiles > 0 && lane == 0) barrier_arrive(shared + WEIGHTS_FULL);
}

// Half of the output.
__device__ __forceinline__ void value(u32 shared, int tiles, Output& o, int half, int w, int lane) {
  int buffer = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < tiles; i++) {
    barrier_wait(shared + WEIGHTS_FULL, i & 1);
    u32 p[TILE / 16][4];
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) load_matrices(p[k], weights_at(shared, w, lane, k));
    const float kept0 = load_f32(shared + KEPT + (w * 16 + lane / 4) * 4);
    const float kept1 = load_f32(shared + KEPT + (w * 16 + lane / 4 + 8) * 4);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + WEIGHTS_EMPTY);
    if (__any_sync(ALL_LANES, kept0 != 1.f || kept1 != 1.f)) rescale(o, kept0, kept1);
    wait_rows(shared, buffer, parity);
    const u64 values = b_of_wide_columns(shared + TILES + buffer * TILE_BYTES + half * 4 * BLOCK, BLOCK);
    products_fence();
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
#pragma unroll
      for (int z = 0; z < 2; z++) multiply_wide_async(o[z], p[k], values + ((z * 2 * BLOCK + k * 16 * 128) >> 4));
    products_commit();
    products_wait<0>();
    if (lane == 0) barrier_arrive(shared + EMPTY + 8 * buffer);
    if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
  }
}

// After it, other blocks' shared memory may be written: all threads of the cluster have met their block's barriers.
__device__ __forceinline__ void cluster_started() {
  if constexpr (SPLITS > 1) {
    __syncwarp();
    cluster_wait();
  }
}
__device__ __forceinline__ void all_meet() {                 // of the cluster
  if constexpr (SPLITS == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

// Both halves: sums over the cluster are known, outputs are merged and written.
__device__ __forceinline__ void finish(const Call& call, const Share& share, u32 shared, Output& o, int thread) {
  const int half = thread / GROUP, w = thread % GROUP / WARP, lane = thread % WARP, g = lane / 4, t = lane % 4;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = w * 16 + g + 8 * r, head = share.first_head + row;
    const u32 at = shared + SUMS + row * 8;
    float top = -INFINITY, sum = 0.f;
    for (int n = 0; n < SPLITS; n++) top = fmaxf(top, load_f32(at + n * HEADS * 8));
    const float base = top == -INFINITY ? 0.f : top;
    for (int n = 0; n < SPLITS; n++) {
      const float2 part = load_f32x2(at + n * HEADS * 8);
      sum += exp2_fast(part.x - base) * part.y;
    }
    const float own = load_f32(at + share.split * HEADS * 8);
    factor[r] = exp2_fast(own - base) * denominator_inverse(call, head, base, sum);
    if (half == 0 && t == 0 && share.split == 0 && head < call.heads)
      call.lse[(i64)share.query * call.heads + head] = natural_lse(top, sum);
  }
  const auto store = [&](int j, int r, float x, float y) {
    const int head = share.first_head + w * 16 + g + 8 * r;
    if (head >= call.heads) return;
    bf16* to = call.out + ((i64)share.query * call.heads + head) * LATENT + half * 256 + 8 * j + 2 * t;
    *(u32*)to = pack_bf16(x, y);
  };
  rescale(o, factor[0], factor[1]);
  if constexpr (SPLITS == 1) {
#pragma unroll
    for (int j = 0; j < 32; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) store(j, r, o[j / 16][j % 16 * 4 + 2 * r], o[j / 16][j % 16 * 4 + 2 * r + 1]);
  } else {
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
      const float* v = o[n / 8] + n % 8 * 8;
      const int owner = n / PIECES_PER_BLOCK, at = n % PIECES_PER_BLOCK;
      store_far_u32x4(in_block(shared + ((share.split * PIECES_PER_BLOCK + at) * 2 * GROUP + thread) * 16, owner),
                      pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    }
    all_meet();
#pragma unroll
    for (int at = 0; at < PIECES_PER_BLOCK; at++) {
      const int n = share.split * PIECES_PER_BLOCK + at;
      if (n >= PIECES) break;
      float total[8] = {};
#pragma unroll
      for (int from = 0; from < SPLITS; from++) {
        const float4 parts = load_f32x4(shared + ((from * PIECES_PER_BLOCK + at) * 2 * GROUP + thread) * 16);
        const u32 pair[4] = {__float_as_uint(parts.x), __float_as_uint(parts.y), __float_as_uint(parts.z),
                             __float_as_uint(parts.w)};
#pragma unroll
        for (int z = 0; z < 4; z++) total[2 * z] += low_bf16(pair[z]), total[2 * z + 1] += high_bf16(pair[z]);
      }
#pragma unroll
      for (int z = 0; z < 4; z++) store(2 * n + z / 2, z % 2, total[2 * z], total[2 * z + 1]);
    }
  }
}

extern "C" __global__ void
#if SPLITS > 1
__cluster_dims__(SPLITS, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
decode_wide(CALL_PARAMETERS) {
  extern __shared__ __align__(1024) u8 memory[];
  const Call call = CALL;
  const u32 shared = shared_address(memory);
  const int thread = threadIdx.x, warpgroup = thread / GROUP, lane = thread % WARP, w = warp_id() % 4;
  const Share share = share_of_block<TILE, HEADS>(call);
  if (thread == 0) {
    for (int b = 0; b < BUFFERS; b++) {
      barrier_init(shared + FULL + 8 * b, GROUP + 4);        // copies of each thread, stores of each warp
      barrier_init(shared + EMPTY + 8 * b, 12);
    }
    barrier_init(shared + WEIGHTS_FULL, 4);
    barrier_init(shared + WEIGHTS_EMPTY, 8);
    barrier_init_done();
  }
  int ahead[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    ahead[r] = warpgroup == 3 ? pick_at<TILE>(call, share, share.begin, row_of(thread % GROUP, r)) : -1;
  __syncthreads();
  if constexpr (SPLITS > 1) cluster_arrive_relaxed();
  const int tiles = share.last - share.begin;
  if (warpgroup == 3) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    produce(call, share, shared, ahead, thread % GROUP);
    cluster_started();
    all_meet();
    if constexpr (SPLITS > 1) all_meet();
  } else if (warpgroup == 0) {
    if (SCORE_REGISTERS < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SCORE_REGISTERS));
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    Held held;
    hold_query(held, call, share, w, lane);
    consumers_meet();
    score(call, held, shared, tiles, top, sum, w, lane);
    cluster_started();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 1);
      sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 2);
      const u32 at = shared + SUMS + (share.split * HEADS + w * 16 + lane / 4 + 8 * r) * 8;
      if constexpr (SPLITS == 1) {
        if (lane % 4 == 0) store_f32x2(at, top[r], sum[r]);
      } else {
        for (int n = lane % 4; n < SPLITS; n += 4) store_far_f32x2(in_block(at, n), top[r], sum[r]);
      }
    }
    all_meet();
    if constexpr (SPLITS > 1) all_meet();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(VALUE_REGISTERS));
    load_query(call, share, shared, thread - GROUP);
    consumers_meet();
    Output o;
#pragma unroll
    for (int z = 0; z < 128; z++) o[z / 64][z % 64] = 0.f;
    value(shared, tiles, o, warpgroup - 1, w, lane);
    cluster_started();
    all_meet();
    finish(call, share, shared, o, thread - GROUP);
  }
}
