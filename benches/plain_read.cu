// The yardstick of the indexer: reads bytes in address order and does nothing with them.
extern "C" __global__ void __launch_bounds__(512) plain_read(const uint4* from, long long chunks, unsigned* sink) {
  unsigned mixed = 0;
  const long long step = (long long)gridDim.x * 512 * 8;
  for (long long at = (long long)blockIdx.x * 512 * 8 + threadIdx.x; at < chunks; at += step) {
    uint4 v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = at + i * 512 < chunks ? __ldcs(from + at + i * 512) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) mixed ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (mixed == 0x9E3779B9u) *sink = mixed;                   // never, as far as the compiler knows
}
