// Sparse MLA decode for many heads: HEADS = 32 or 64 a block. Stored rows are the register operand of wgmma, so no
// second copy of a tile is written to shared memory.
//
//   SCORERS warpgroups   scores   Sᵀ (64 tokens × heads) = K Qᵀ, softmax, weights P to shared memory
//   2 warpgroups         values   Oᵀ (256 dimensions each × heads) += Vᵀ P
//   1 warpgroup          producers, one bulk copy a row ──► ring of UNITS × 32 raw rows; a tile is two units
//
//   one scorer    tile i: wait rows ─ K Qᵀ ─ let values of i − 1 go ─ softmax ─ P (two buffers)
//                         values: Vᵀ P of i − 1, then its rows are free
//   two scorers   take tiles in turn, so that the products of one run during the softmax of the other. What a softmax
//                 starts from, the tops of all earlier tiles, is handed on from tile to tile (TOPS_DONE): a scorer takes
//                 it over when its products are done, and hands it on before it computes exponentials.
//
// FP8: on the way to the operand a K row is multiplied by f16(scale / 2^e), 2^e at least the row's largest scale, its
// RoPE part by 2^-e, and the logit by 2^e in fp32; a V row by f16(scale / n), where n is a power of two per scale group
// that follows the largest scale. Both round by 2^-11 and no more.
//
// Blocks of a cluster exchange tops and sums first, then normalised outputs in halves through distributed shared memory;
// each finishes a SPLITS-th of the output, in a fixed order, so results repeat bit by bit.
#include "many_scores.cuh"

// Two neighbouring dimensions of one head (FP8), or dimensions 8 apart (BF16).
__device__ __forceinline__ void store_pair(bf16* to, float x, float y) {
  const u32 pair = pack_bf16(x, y);
  if constexpr (FP8) *(u32*)to = pair;
  else to[0] = (bf16)pair, to[8] = (bf16)(pair >> 16);
}

__device__ __forceinline__ void value(const Call& call, const Share& share, u32 shared, int thread) {
  const int part = thread / GROUP, w = thread % GROUP / WARP, lane = thread % WARP, g = lane / 4, t = lane % 4;
  load_query(call, share, shared, GROUP + thread);
  cluster_started();
  consumers_meet();
  float o[4][4 * COLUMNS8];                                  // 16 dimensions a warp of each of four
#pragma unroll
  for (int a = 0; a < 4; a++)
#pragma unroll
    for (int z = 0; z < 4 * COLUMNS8; z++) o[a][z] = 0.f;
  const u64 weights = b_of_columns<HEADS * 2>(shared + WEIGHTS);
  const u32 lane_row = FP8 ? lane % 16 * ROW_PITCH + part * 256 + w * 32 + lane / 16 * 16
                           : (lane % 8 + lane / 16 * 8) * ROW_PITCH + (part * 256 + w * 32) * 2 + lane / 8 % 2 * 16;
  const int tiles = share.last;
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < tiles; i++) {
    const int buffer = i % 2;
    barrier_wait(shared + FULL + 8 * slot, parity);
    barrier_wait(shared + FULL + 8 * slot + 8, parity);
    barrier_wait(shared + WEIGHTS_FULL + 8 * buffer, (i / 2) & 1);
    const u32 tile = shared + RING + slot * UNIT_BYTES + lane_row;
    const u32 scales = shared + TOKEN_SCALES + buffer * SCALE_GROUPS * TILE * 2 + part * 2 * TILE * 2 + t * 4;
    if (load_u32(shared + MOVED + buffer * 4)) {
      const float2 shrink = load_f32x2(shared + SHRINK + (buffer * 4 + 2 * part) * 4);
#pragma unroll
      for (int j = 0; j < COLUMNS8; j++) {
        const float2 kept = load_f32x2(shared + KEPT + (buffer * HEADS + 8 * j + 2 * t) * 4);
#pragma unroll
        for (int a = 0; a < 4; a++) {
          const float n = a < 2 ? shrink.x : shrink.y;
          o[a][4 * j] *= kept.x * n, o[a][4 * j + 1] *= kept.y * n;
          o[a][4 * j + 2] *= kept.x * n, o[a][4 * j + 3] *= kept.y * n;
        }
      }
    }
    u32 a[2][2][4];
#pragma unroll
    for (int step = 0; step < 8; step++) {                   // 16 tokens, one half of this warpgroup's dimensions
      const int k = step / 2, half = step % 2;
      if constexpr (FP8) {
        u32 raw[4];
        load_matrices_transposed(raw, tile + k * 16 * ROW_PITCH + half * 128);
        const u32 pair = scales + half * TILE * 2 + k * 32;
        const u32 scale0 = load_u32(pair), scale1 = load_u32(pair + 16);
        products_wait<1>();
#pragma unroll
        for (int z = 0; z < 2; z++) {
          u32(&x)[4] = a[step & 1][z];
          e4m3x4_to_f16(__byte_perm(raw[2 * z], 0, 0x3120), x[0], x[1]);
          e4m3x4_to_f16(__byte_perm(raw[2 * z + 1], 0, 0x3120), x[2], x[3]);
          x[0] = multiply_f16x2(x[0], scale0), x[1] = multiply_f16x2(x[1], scale0);
          x[2] = multiply_f16x2(x[2], scale1), x[3] = multiply_f16x2(x[3], scale1);
        }
      } else {
        products_wait<1>();
#pragma unroll
        for (int z = 0; z < 2; z++)
          load_matrices_transposed(a[step & 1][z], tile + k * 16 * ROW_PITCH + (half * 128 + z * 16) * 2);
      }
      if (step == 3 || step == 7) {                          // the rows of a unit are in registers
        __syncwarp();
        if (lane == 0) barrier_arrive(shared + EMPTY + 8 * (slot + step / 4));
      }
      products_fence();
      const u64 b = weights + ((buffer * WEIGHT_BYTES + k * 16 * HEADS * 2) >> 4);
#pragma unroll
      for (int z = 0; z < 2; z++) multiply_async<FP8 ? F16 : BF16, true>(o[2 * half + z], a[step & 1][z], b, 1);
      products_commit();
    }
    products_wait<0>();
    if (lane == 0) barrier_arrive(shared + WEIGHTS_EMPTY + 8 * buffer);
    slot += 2;
    if (slot == UNITS) slot = 0, parity ^= 1;
  }
  all_meet();
  consumers_meet();

  float2 n = FP8 ? load_f32x2(shared + NORMALISERS + 8 * part) : make_float2(1.f, 1.f);
  const auto out_of = [&](int a, int j) {                    // where head 2 t of column j, first dimension of o[a] is
    const int dim = part * 256 + a / 2 * 128 + w * 32 + a % 2 * 16 + (FP8 ? 2 * g : g);
    return call.out + ((i64)share.query * call.heads + share.first_head + 8 * j + 2 * t) * LATENT + dim;
  };
  const auto real = [&](int j, int z) { return share.first_head + 8 * j + 2 * t + z < call.heads; };
  if constexpr (SPLITS == 1) {
#pragma unroll
    for (int j = 0; j < COLUMNS8; j++) {
      const float2 factor = load_f32x2(shared + FACTORS + (8 * j + 2 * t) * 4);
#pragma unroll
      for (int a = 0; a < 4; a++) {
        const float f0 = factor.x * (a < 2 ? n.x : n.y), f1 = factor.y * (a < 2 ? n.x : n.y);
        if (real(j, 0)) store_pair(out_of(a, j), o[a][4 * j] * f0, o[a][4 * j + 2] * f0);
        if (real(j, 1)) store_pair(out_of(a, j) + LATENT, o[a][4 * j + 1] * f1, o[a][4 * j + 3] * f1);
      }
    }
    return;
  } else {
    const int rank = share.split;
    float2 common = make_float2(1.f, 1.f);                   // the cluster's normaliser: f16 holds parts relative to it
    if constexpr (FP8) {
      common = make_float2(0.f, 0.f);
#pragma unroll
      for (int r = 0; r < SPLITS; r++)
        common = max2(common, load_f32x2(shared + FAR_NORMALISERS + (r * SCALE_GROUPS + 2 * part) * 4));
      n.x *= power_inverse(common.x), n.y *= power_inverse(common.y);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS8; j += 2) {
      const float2 first = load_f32x2(shared + FACTORS + (8 * j + 2 * t) * 4);
      const float2 second = load_f32x2(shared + FACTORS + (8 * j + 8 + 2 * t) * 4);
#pragma unroll
      for (int a = 0; a < 4; a++) {
        const float m = a < 2 ? n.x : n.y;
        const float* v = &o[a][4 * j];
        const int pair = a * (COLUMNS8 / 2) + j / 2, owner = pair / PAIRS_PER_BLOCK, at = pair % PAIRS_PER_BLOCK;
        store_far_u32x4(in_block(shared + ((rank * PAIRS_PER_BLOCK + at) * 2 * GROUP + thread) * 16, owner),
                        pack_half(v[0] * first.x * m, v[2] * first.x * m), pack_half(v[1] * first.y * m, v[3] * first.y * m),
                        pack_half(v[4] * second.x * m, v[6] * second.x * m),
                        pack_half(v[5] * second.y * m, v[7] * second.y * m));
      }
    }
    all_meet();
#pragma unroll
    for (int at = 0; at < PAIRS_PER_BLOCK; at++) {
      const int pair = rank * PAIRS_PER_BLOCK + at;
      if (pair >= PAIRS) break;
      const int a = pair / (COLUMNS8 / 2), j = pair % (COLUMNS8 / 2) * 2;
      float2 sum[4] = {};
#pragma unroll
      for (int r = 0; r < SPLITS; r++) {
        const float4 parts = load_f32x4(shared + ((r * PAIRS_PER_BLOCK + at) * 2 * GROUP + thread) * 16);
        const float part4[4] = {parts.x, parts.y, parts.z, parts.w};
#pragma unroll
        for (int z = 0; z < 4; z++) {
          const float2 v = unpack_half(__float_as_uint(part4[z]));
          sum[z].x += v.x, sum[z].y += v.y;
        }
      }
      const float m = a < 2 ? common.x : common.y;
#pragma unroll
      for (int z = 0; z < 4; z++)
        if (real(j + z / 2, z % 2)) store_pair(out_of(a, j + z / 2) + z % 2 * LATENT, sum[z].x * m, sum[z].y * m);
    }
  }
}

extern "C" __global__ void
#if SPLITS > 1
__cluster_dims__(SPLITS, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
decode_many(CALL_PARAMETERS) {
  extern __shared__ __align__(1024) u8 memory[];
  const Call call = CALL;
  const u32 shared = shared_address(memory);
  const int thread = threadIdx.x, warpgroup = thread / GROUP;
  if (thread == 0) {
    for (int s = 0; s < UNITS; s++) {
      barrier_init(shared + FULL + 8 * s, UNIT);
      barrier_init(shared + EMPTY + 8 * s, 8);
    }
    for (int s = 0; s < 2; s++) {
      barrier_init(shared + WEIGHTS_FULL + 8 * s, 4);
      barrier_init(shared + WEIGHTS_EMPTY + 8 * s, 8);
      barrier_init(shared + TOPS_DONE + 8 * s, 4);
    }
    barrier_init_done();
  }
  if (thread < HEADS) store_f32(shared + TOPS + thread * 4, NO_TOP);
  if (thread < SCALE_GROUPS) store_f32(shared + NORMALISERS + thread * 4, 0.f);
  if (!LATE) wait_for_previous_kernel();
  const Share share = share_of_block<TILE, HEADS>(call);
  const int producer = warp_id() - CONSUMERS / WARP, lane = thread % WARP;
  const int first = producer >= 0 ? lane_pick(call, share, 0, producer, lane) : -1;
  const int second = producer >= 0 ? lane_pick(call, share, 1, producer, lane) : -1;
  __syncthreads();
  if constexpr (SPLITS > 1) cluster_arrive_relaxed();
  if (producer >= 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    produce(call, share, shared, first, second, producer, lane);
    cluster_started();
    all_meet();
    if constexpr (SPLITS > 1) all_meet();
  } else if (warpgroup < SCORERS) {
    if (SCORE_REGISTERS < ENTRY_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SCORE_REGISTERS));
    score(call, share, shared, SCORERS == 1 ? 0 : warpgroup, thread % GROUP);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(VALUE_REGISTERS));
    value(call, share, shared, thread - SCORERS * GROUP);
  }
}
