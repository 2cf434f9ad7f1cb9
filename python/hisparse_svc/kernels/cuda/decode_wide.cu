// Sparse MLA decode of BF16 rows for 64 heads a block: heads in M, so that products are wide and few blocks read a row.
//
//   warpgroup 0       S (heads × TILE tokens) = Q Kᵀ, softmax, P to shared memory
//   warpgroups 1, 2   O (heads × 256 dimensions each) += P V
//   warpgroup 3       producers: rows in pieces of 16 bytes, in the swizzled order that products read
//
//   a tile            nine blocks of 64 numbers × TILE tokens, rows of 128 bytes; keys are all nine, values the first eight
//   in turn           Q Kᵀ of i alone ─ softmax of i beside P V of i − 1 ─ Q Kᵀ of i + 1 ─        another tile arrives
//
// Shared memory holds three tiles because two of the nine blocks of queries are in warpgroup 0's registers. Values load
// their weights as soon as they are there, and start when they may; the rows they leave are filled 16 at a time.
#include "wide_merge.cuh"

typedef float Logits[TILE / 2];                              // of column j: (head g, tokens 8 j + 2 t, + 1), (g + 8, ..)

__device__ __forceinline__ u32 weights_at(u32 shared, int w, int lane, int k) {
  const int row = w * 16 + lane % 16, piece = 2 * k + lane / 16;
  const int swizzle = row / 4 % 2;                           // rows of 96 bytes, two to a bank
  return shared + WEIGHTS + row * TILE * 2 + ((piece ^ swizzle) << 4);
}
__device__ __forceinline__ void wait_rows(u32 shared, int buffer, int parity) {
  barrier_wait(shared + FULL + 8 * buffer, parity);
  async_follows_stores();                                     // pieces were copied as ordinary stores are
}

// Weights of all tiles; gives tops and sums of heads g and g + 8.
__device__ __forceinline__ void score(const Call& call, const Held& held, u32 shared, int tiles, float (&top)[2],
                                      float (&sum)[2], int w, int lane) {
  const int t = lane % 4;
  int buffer = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < tiles; i++) {
    wait_rows(shared, buffer, parity);
    u32 rows = ALL_LANES;                                    // whether there is a row at every token
#pragma unroll
    for (int z = 0; z < TILE / 16; z++) {
      const uint4 four = load_u32x4(shared + MASKS + buffer * TILE + z * 16);
      rows &= four.x & four.y & four.z & four.w;
    }
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
    if (i == tiles - 1) done_with_queries();
    if (i > 0 && lane == 0) barrier_arrive(shared + VALUES_MAY);     // their products would have slowed these
    float most[2] = {-INFINITY, -INFINITY}, kept[2], base[2];
#pragma unroll
    for (int j = 0; j < TILE / 2; j++) s[j] *= call.scale_log2;
    if (rows != ALL_LANES) {
#pragma unroll
      for (int j = 0; j < TILE / 8; j++) {
        const u32 pair = load_u32(shared + MASKS + buffer * TILE + 8 * j + t / 2 * 4) >> t % 2 * 16;
        if (!(pair & 0xFF)) s[4 * j] = s[4 * j + 2] = -INFINITY;
        if (!(pair & 0xFF00)) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
      }
    }
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) most[r] = fmaxf(most[r], fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    __syncwarp();
#pragma unroll
    for (int r = 0; r < SLICES; r++)
      if (lane == 0) barrier_arrive(shared + EMPTY + 8 * (buffer * SLICES + r));
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
    if (lane == 0) barrier_arrive(shared + WEIGHTS_FULL);
    if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
  }
  if (tiles == 0) done_with_queries();
  else if (lane == 0) barrier_arrive(shared + VALUES_MAY);
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
    barrier_wait(shared + VALUES_MAY, i & 1);
    const u64 values = b_of_wide_columns(shared + TILES + buffer * TILE_BYTES + half * 4 * BLOCK, BLOCK);
    products_fence();
#pragma unroll
    for (int k = 0; k < SLICES; k++) {
#pragma unroll
      for (int z = 0; z < 2; z++) multiply_wide_async(o[z], p[k], values + ((z * 2 * BLOCK + k * 16 * 128) >> 4));
      products_commit();
    }
    const u32 empty = shared + EMPTY + 8 * buffer * SLICES;
    products_wait<2>();
    if (lane == 0) barrier_arrive(empty);
    products_wait<1>();
    if (lane == 0) barrier_arrive(empty + 8);
    products_wait<0>();
    if (lane == 0) barrier_arrive(empty + 16);
    if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
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
  if (thread == 3 * GROUP) {
    for (int b = 0; b < BUFFERS; b++) {
      barrier_init(shared + FULL + 8 * b, GROUP + 4);        // copies of each thread, stores of each warp
      for (int r = 0; r < SLICES; r++) barrier_init(shared + EMPTY + 8 * (b * SLICES + r), 12);
    }
    barrier_init(shared + WEIGHTS_FULL, 4);
    barrier_init(shared + WEIGHTS_EMPTY, 8);
    barrier_init(shared + VALUES_MAY, 4);
    barrier_init(shared + SUMS_IN, 1);
    barrier_init(shared + PARTS_IN, 1);
    barrier_init_done();
    if (SPLITS > 1) expect_parts(shared, blockIdx.x % SPLITS);
  }
  if (!LATE) wait_for_previous_kernel();
  const Share share = share_of_block<TILE, HEADS>(call);
  // Rows are asked for as soon as their barriers are there; who uses them meets later, with the queries.
  if (warpgroup == 3) {
    int ahead[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) ahead[r] = pick_at<TILE>(call, share, 0, row_of(thread % GROUP, r));
    __syncwarp();
    meet<4, GROUP>();
    arrive<0, THREADS>();
    done_with_queries();
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    produce(call, share, shared, ahead, thread % GROUP);
    all_done_with_queries();                                 // who ends before would count as arrived once more
  } else if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SCORE_REGISTERS));
    const int tiles = share.last;
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    Held held;
    hold_query(held, call, share, w, lane);
    meet<0, THREADS>();
    score(call, held, shared, tiles, top, sum, w, lane);
    all_done_with_queries();
    weigh(call, share, shared, top, sum, thread);
  } else {
    load_query(call, share, shared, thread - GROUP);
    meet<0, THREADS>();
    done_with_queries();
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(VALUE_REGISTERS));
    const int tiles = share.last;
    Output o;
#pragma unroll
    for (int z = 0; z < 128; z++) o[z / 64][z % 64] = 0.f;
    value(shared, tiles, o, warpgroup - 1, w, lane);
    all_done_with_queries();
    finish(call, share, shared, o, thread - GROUP);
  }
}
