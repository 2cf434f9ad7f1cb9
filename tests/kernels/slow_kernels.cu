// Stand-ins for resolve and gather that let the next kernel start at once, and do their work late and in an odd order
// (test_slow_kernels.py). Compiled behind common.cuh.

__device__ __forceinline__ void pass_ns(u32 ns) {
  u64 now, start;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < ns);
}

// A request's block: what resolve found before, again, after a delay: `words` words each of four kinds.
extern "C" __global__ void slow_resolve(const u32* delays, const u32* found, u32* copies, u32* hits, u32* late, u32* counts,
                                        int picks, int requests) {
  next_kernel_may_start();
  pass_ns(delays[blockIdx.x]);
  const int request = blockIdx.x;
  const u32* from = found + (i64)request * (4 * picks + 3);
  for (int i = threadIdx.x; i < picks; i += blockDim.x) {
    copies[2 * (request * picks + i)] = from[2 * i];
    copies[2 * (request * picks + i) + 1] = from[2 * i + 1];
    hits[request * picks + i] = from[2 * picks + i];
    late[request * picks + i] = from[3 * picks + i];
  }
  if (threadIdx.x < 3) counts[threadIdx.x * requests + request] = from[4 * picks + threadIdx.x];
}

// Row i of `from`, 16 bytes at a time, to hot row to[i], after delays[i]; a warp takes every so many.
extern "C" __global__ void slow_gather(const u32* delays, const uint4* from, uint4* hot, const int* to, int rows,
                                       int row_pieces) {
  next_kernel_may_start();
  const int warps = gridDim.x * blockDim.x / WARP;
  for (int i = blockIdx.x * (blockDim.x / WARP) + warp_id(); i < rows; i += warps) {
    pass_ns(delays[i]);
    for (int c = lane_id(); c < row_pieces; c += WARP) hot[(i64)to[i] * row_pieces + c] = from[(i64)i * row_pieces + c];
  }
}
