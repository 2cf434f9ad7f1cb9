// Attention over disjoint sets of rows → over all of them: a warp per query and head.
//
//   weight of part p = exp(lse_p − top);   out = Σ weight_p out_p / (Σ weight_p + exp(sink − top)),   in the parts' order
//
// A part of weight 0 is not read: where nothing was selected, anything may lie.
#include "hopper.cuh"

#define INFINITY __int_as_float(0x7F800000)
constexpr int LATENT = 512, PIECES = LATENT / 8 / WARP;      // of 16 bytes, of a lane

extern "C" __global__ void __launch_bounds__(THREADS)
merge(const bf16* out0, const bf16* out1, const bf16* out2, const bf16* out3, const float* lse0, const float* lse1,
      const float* lse2, const float* lse3, const float* sink, bf16* out, float* lse, int items, int heads) {
  const int item = blockIdx.x * (THREADS / WARP) + warp_id();
  if (item >= items) return;
  const bf16* const outs[4] = {out0, out1, out2, out3};
  const float* const lses[4] = {lse0, lse1, lse2, lse3};
  float weight[PARTS], top = -INFINITY, total = 0.f;
#pragma unroll
  for (int p = 0; p < PARTS; p++) top = fmaxf(top, weight[p] = lses[p][item]);
  const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
  for (int p = 0; p < PARTS; p++) total += weight[p] = __expf(weight[p] - base);
  const float denominator = total + (sink ? __expf(__ldg(sink + item % heads) - base) : 0.f);
  const float inverse = total == 0.f ? 0.f : 1.f / denominator;
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const i64 at = (i64)item * LATENT + (i * WARP + lane_id()) * 8;
    float sum[8] = {};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      if (weight[p] == 0.f) continue;
      const uint4 v = *(const uint4*)(outs[p] + at);
      const u32 pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int z = 0; z < 4; z++) {
        sum[2 * z] += weight[p] * low_bf16(pair[z]);
        sum[2 * z + 1] += weight[p] * high_bf16(pair[z]);
      }
    }
#pragma unroll
    for (int z = 0; z < 8; z++) sum[z] *= inverse;
    *(uint4*)(out + at) = make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                                     pack_bf16(sum[6], sum[7]));
  }
  if (lane_id() == 0) lse[item] = base + logf(total);
}
