// Sparse MLA decode for few heads: HEADS = 8 or 16 a block. Tokens and value dimensions are in M, heads in N, so that
// eight heads waste nothing.
//
//   producers   PRODUCERS warps, one bulk copy a row ──► ring of STAGES tiles (raw rows)
//   consumers   GROUPS groups of 4 warps; a group takes every GROUPS-th tile. Warp w of a group owns numbers
//               128 w … 128 w + 127 of the latent part (with FP8: one scale group) and 16 of the RoPE part:
//
//      Sᵀ = K Qᵀ  its quarter ──► shared memory ──► each warp adds the quarters of 8 tokens ──► softmax ──► Oᵀ += Vᵀ Pᵀ
//
//   merge       groups through the ring's memory, blocks of a cluster through distributed shared memory: each block
//               finishes a SPLITS-th of the output, in a fixed order, so results repeat bit by bit
//
// FP8 rows are never scaled: e4m3 → f16 is exact, scales multiply logits per group, and weights per (token, group)
// against a power of two that follows the largest scale. Queries enter f16 divided by a power of two per group.
//
// An odd-looking order of tokens: weight u of thread t is token t + 4 u of 16, which frees the loads of the sums from
// bank conflicts; value rows are addressed in the same order.
#include "few_scores.cuh"

// What a warp has summed: outputs of its 128 dimensions and, in all warps alike, tops and sums of exponentials.
struct Sums {
  float out[8][NH][4];
  float top[NH], total[NH];                                  // of head nh * 8 + g; total of this thread's tokens alone
  float normaliser, inverse;                                 // FP8: the power of two that weights are divided by
};

// Softmax of a tile's first `tokens` and Oᵀ += Vᵀ Pᵀ.
__device__ __forceinline__ void add_values(Sums& sums, u32 tile, int tokens, u32 scores, float largest_scale, int w,
                                           int lane) {
  const int g = lane / 4, t = lane % 4;
  float weight[TILE / 16][NH][4], top[NH];
  bool moved = false;
#pragma unroll
  for (int nh = 0; nh < NH; nh++) {
    float most = -INFINITY;
#pragma unroll
    for (int z = 0; z < 4; z++)
      if (z * TILE / 4 < tokens)
        most = fmaxf(most, load_f32(scores + (QUARTER + nh * TILE * 8 + z * TILE / 4 * 8 + g) * 4));
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
#pragma unroll
      for (int u = 0; u < 4; u++)
        weight[k][nh][u] = load_f32(scores + (nh * TILE * 8 + (k * 16 + t + 4 * u) * 8 + g) * 4);
    top[nh] = sums.top[nh];
    if (most > top[nh] + LAZY) top[nh] = most, moved = true;
  }
  const bool rescale = FP8 && largest_scale > sums.normaliser * LAZY_SCALE;
  if (__any_sync(ALL_LANES, moved) || rescale) {
    float shrink = 1.f;
    if (rescale) {
      const float power = power_above(largest_scale);
      sums.inverse = power_inverse(power);
      shrink = sums.normaliser * sums.inverse;
      sums.normaliser = power;
    }
#pragma unroll
    for (int nh = 0; nh < NH; nh++) {
      float kept = top[nh] == -INFINITY ? 1.f : exp2_fast(sums.top[nh] - top[nh]);
      sums.total[nh] *= kept;
      sums.top[nh] = top[nh];
      kept *= shrink;
      const float kept0 = __shfl_sync(ALL_LANES, kept, t * 8), kept1 = __shfl_sync(ALL_LANES, kept, t * 8 + 4);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        sums.out[i][nh][0] *= kept0, sums.out[i][nh][1] *= kept1;
        sums.out[i][nh][2] *= kept0, sums.out[i][nh][3] *= kept1;
      }
    }
  }
  const int token = (lane & 7) / 2 + (lane & 1) * 4;         // of 8: the order of the weights
  const u32 lane_row = FP8 ? (((lane >> 3) & 1) * 8 + token) * ROW_PITCH + w * 128 + (lane >> 4) * 16
                           : ((lane >> 4) * 8 + token) * ROW_PITCH + w * 256 + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (int k = 0; k < TILE / 16; k++) {
    if (k * 16 >= tokens) break;
    const u32 rows = tile + k * 16 * ROW_PITCH;
    float scale[4] = {1.f, 1.f, 1.f, 1.f};
    if constexpr (FP8)
#pragma unroll
      for (int u = 0; u < 4; u++) scale[u] = load_f32(rows + (t + 4 * u) * ROW_PITCH + SCALES_AT + 4 * w) * sums.inverse;
    u32 p[NH][2];
#pragma unroll
    for (int nh = 0; nh < NH; nh++) {
      const float base = sums.top[nh] == -INFINITY ? 0.f : sums.top[nh];
      float e[4];
#pragma unroll
      for (int u = 0; u < 4; u++) {
        e[u] = exp2_fast(weight[k][nh][u] - base);
        sums.total[nh] += e[u];
        e[u] *= scale[u];
      }
      p[nh][0] = FP8 ? pack_f16(e[0], e[1]) : pack_bf16(e[0], e[1]);
      p[nh][1] = FP8 ? pack_f16(e[2], e[3]) : pack_bf16(e[2], e[3]);
    }
    if constexpr (FP8) {
#pragma unroll
      for (int i = 0; i < 8; i += 2) {                       // 32 dimensions: 2 g, 2 g + 1 of the first and last 16
        u32 r[4], a[4];
        load_matrices_transposed(r, rows + lane_row + i * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          e4m3x4_to_f16(__byte_perm(r[2 * half], 0, 0x3120), a[0], a[1]);
          e4m3x4_to_f16(__byte_perm(r[2 * half + 1], 0, 0x3120), a[2], a[3]);
#pragma unroll
          for (int nh = 0; nh < NH; nh++) multiply_f16(sums.out[i + half][nh], a, p[nh][0], p[nh][1]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; i++) {                          // 16 dimensions: g and g + 8
        u32 a[4];
        load_matrices_transposed(a, rows + lane_row + i * 32);
#pragma unroll
        for (int nh = 0; nh < NH; nh++) multiply_bf16(sums.out[i][nh], a, p[nh][0], p[nh][1]);
      }
    }
  }
}

// Fragment f: head pair 2 (f % 4) of head column f / 1024, dimensions by its warp, i and g.
struct Merged {
  float top0, top1, total0, total1;
  float4 out;
};
// Adds N parts in their order. Sums of a head are (top, total).
template <int N>
__device__ __forceinline__ Merged merge(u32 parts, int part_bytes, u32 head_sums, int sums_bytes) {
  Merged merged = {-INFINITY, -INFINITY, 0.f, 0.f, make_float4(0.f, 0.f, 0.f, 0.f)};
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float4 sum = load_f32x4(head_sums + n * sums_bytes);
    merged.top0 = fmaxf(merged.top0, sum.x);
    merged.top1 = fmaxf(merged.top1, sum.z);
  }
  const float base0 = merged.top0 == -INFINITY ? 0.f : merged.top0, base1 = merged.top1 == -INFINITY ? 0.f : merged.top1;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float4 sum = load_f32x4(head_sums + n * sums_bytes), part = load_f32x4(parts + n * part_bytes);
    const float w0 = exp2_fast(sum.x - base0), w1 = exp2_fast(sum.z - base1);
    merged.total0 += w0 * sum.y, merged.total1 += w1 * sum.w;
    merged.out.x += w0 * part.x, merged.out.y += w1 * part.y, merged.out.z += w0 * part.z, merged.out.w += w1 * part.w;
  }
  return merged;
}
__device__ __forceinline__ int heads_of_fragment(int f) { return f / 1024 * 8 + 2 * (f % 4); }
__device__ __forceinline__ bool first_of_heads(int f) { return (f % 1024 & ~3) == 0; }

__device__ __forceinline__ void finish(const Call& call, const Share& share, int f, const Merged& merged) {
  const int i = f / 128 % 8, thread = f % 128, g = thread % 32 / 4;
  const int dim = thread / 32 * 128 + i * 16 + (FP8 ? 2 * g : g);
  const int head = share.first_head + heads_of_fragment(f);
  const float inverse0 = denominator_inverse(call, head, merged.top0, merged.total0);
  const float inverse1 = denominator_inverse(call, head + 1, merged.top1, merged.total1);
  bf16* out = call.out + ((i64)share.query * call.heads + head) * LATENT + dim;
  const u32 pair0 = pack_bf16(merged.out.x * inverse0, merged.out.z * inverse0);
  const u32 pair1 = pack_bf16(merged.out.y * inverse1, merged.out.w * inverse1);
  const auto store = [&](bf16* to, u32 pair) {
    if constexpr (FP8) *(u32*)to = pair;
    else to[0] = (bf16)pair, to[8] = (bf16)(pair >> 16);
  };
  if (head < call.heads) store(out, pair0);
  if (head + 1 < call.heads) store(out + LATENT, pair1);
  if (first_of_heads(f)) {
    float* lse = call.lse + (i64)share.query * call.heads + head;
    if (head < call.heads) lse[0] = natural_lse(merged.top0, merged.total0);
    if (head + 1 < call.heads) lse[1] = natural_lse(merged.top1, merged.total1);
  }
}

extern "C" __global__ void
#if SPLITS > 1
__cluster_dims__(SPLITS, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
decode_few(CALL_PARAMETERS) {
  const Call call = CALL;
  extern __shared__ __align__(128) u8 memory[];
  const u32 shared = shared_address(memory);
  const int warp = warp_id(), lane = lane_id();
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(shared + FULL + 8 * s, TILE);
      barrier_init(shared + EMPTY + 8 * s, 4);
    }
    barrier_init_done();
  }
  if (!LATE) wait_for_previous_kernel();
  Share share = share_of_block<TILE, HEADS, LATE_TILE>(call);
  const int producer = warp - 4 * GROUPS;                    // negative: a consumer
  int ahead[PREFETCH];
#pragma unroll
  for (int p = 0; p < PREFETCH; p++) ahead[p] = producer >= 0 ? lane_pick(call, share, p, producer, lane) : -1;
  __syncthreads();
  if (SPLITS > 1) cluster_arrive_relaxed();
  if (producer >= 0) {
#if PRODUCER_REGISTERS
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
#endif
    produce(call, share, shared, ahead, producer, lane);
    if (SPLITS > 1) {
      __syncwarp();
      cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
    return;
  }
#if CONSUMER_REGISTERS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
#endif
  const int group = warp / 4, w = warp % 4, thread = threadIdx.x % GROUP_THREADS;
  Query query;
  load_query(query, call, share, w, lane);
  Sums sums = {};
#pragma unroll
  for (int nh = 0; nh < NH; nh++) sums.top[nh] = -INFINITY;
  int stage = group, parity = 0, buffer = 0;
  for (int tile = group; tile < share.last; tile += GROUPS) {
    barrier_wait(shared + FULL + 8 * stage, parity);
    const u32 tile_at = shared + RING + stage * STAGE_BYTES;
    const u32 scores = shared + SCORES + (group * 2 + buffer) * SCORE_BYTES;
    buffer ^= 1;
    const int tokens = is_late(share, tile) ? LATE_TILE : TILE;
    multiply_keys(query, tile_at, tokens, shared + MASKS + stage * TILE * 4, scores, w, lane);
    float largest = 0.f;
    if constexpr (FP8) {
      const u32 row = tile_at + (LATE ? lane & (tokens - 1) : lane) * ROW_PITCH;
      const u32 bits = __float_as_uint(load_f32(row + SCALES_AT + 4 * w)) & 0x7FFFFFFFu;
      largest = __uint_as_float(__reduce_max_sync(ALL_LANES, bits));
    }
    group_meets(group);
    if (w * TILE / 4 < tokens) add_quarters(scores, call.scale_log2, w, lane);
    group_meets(group);
    add_values(sums, tile_at, tokens, scores, largest, w, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + EMPTY + 8 * stage);
    stage += GROUPS;
    if (stage >= STAGES) stage -= STAGES, parity ^= 1;
  }

  consumers_meet();                                          // nobody reads the ring any more
  place_block<HEADS>(call, share);                           // again: what the loop holds would spill
#pragma unroll
  for (int nh = 0; nh < NH; nh++) {
    float total = sums.total[nh];
    total += __shfl_xor_sync(ALL_LANES, total, 1);
    total += __shfl_xor_sync(ALL_LANES, total, 2);
    const float n = FP8 ? sums.normaliser : 1.f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float* o = sums.out[i][nh];
      const u32 at = shared + ((group * NH + nh) * 1024 + i * 128 + thread) * 16;
      store_u32x4(at, __float_as_uint(o[0] * n), __float_as_uint(o[1] * n), __float_as_uint(o[2] * n),
                  __float_as_uint(o[3] * n));
    }
    if (w == 0 && lane % 4 == 0)
      store_f32x2(shared + GROUP_SUMS + (group * HEADS + nh * 8 + lane / 4) * 8, sums.top[nh], total);
  }
  consumers_meet();
  if (SPLITS > 1) {
    __syncwarp();
    cluster_wait();                                          // the other blocks have started
  }
  const int rank = share.split;
  for (int f = threadIdx.x; f < FRAGMENTS; f += CONSUMERS) {
    const Merged merged = merge<GROUPS>(shared + f * 16, FRAGMENTS * 16,
                                        shared + GROUP_SUMS + heads_of_fragment(f) * 8, HEADS * 8);
    if (SPLITS == 1) {
      finish(call, share, f, merged);
      continue;
    }
    const int owner = f / CHUNK, at = f % CHUNK;
    store_far_f32x4(in_block(shared + FAR_PARTS + (rank * CHUNK + at) * 16, owner), merged.out);
    if (first_of_heads(f)) {
      const float4 sum = make_float4(merged.top0, merged.total0, merged.top1, merged.total1);
      for (int r = 0; r < SPLITS; r++)
        store_far_f32x4(in_block(shared + FAR_SUMS + (rank * HEADS + heads_of_fragment(f)) * 8, r), sum);
    }
  }
  if (SPLITS == 1) return;
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  for (int at = threadIdx.x; at < CHUNK; at += CONSUMERS) {
    const int f = rank * CHUNK + at;
    if (f >= FRAGMENTS) break;
    finish(call, share, f,
           merge<SPLITS>(shared + FAR_PARTS + at * 16, CHUNK * 16, shared + FAR_SUMS + heads_of_fragment(f) * 8, HEADS * 8));
  }
}
